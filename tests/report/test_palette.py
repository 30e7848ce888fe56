from sophon.codec.route import Route
from sophon.plan.policies import POLICIES
from sophon.plan.resources import KINDS
from sophon.report.palette import POLICY, TINTS, bottleneck_tint, cut_tints


def test_every_light_colour_names_one_tint():
    # Figures are drawn in light colours, and each of these becomes one CSS variable.
    lights = [light for light, _ in TINTS.values()]
    assert len(set(lights)) == len(lights)


def test_every_policy_has_a_colour():
    assert set(POLICIES) <= set(POLICY)


def test_every_resource_has_a_colour():
    assert all(bottleneck_tint(kind.name) == bottleneck_tint(f"{kind.name} of a") == kind.name for kind in KINDS)


def test_usual_cuts_keep_their_colour_whatever_stands_beside_them():
    usual = [Route.parse(text) for text in ("0:raw", "0:window", "2:webp", "2:raw")]
    alone = {cut: cut_tints([cut])[cut] for cut in usual}
    odd = ("1:webp", "3:webp", "1:raw", "7:raw", "9:raw", "0:what", "1:ever", "0:window/2:raw")
    many = cut_tints([*usual, *map(Route.parse, odd)])
    assert {cut: many[cut] for cut in usual} == alone
    assert all(tint in TINTS for tint in many.values())


def _luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one, other):
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_is_readable_on_both_pages():
    # WCAG 2: 4.5 for text.
    for side in (0, 1):
        for name in ("ink", "muted"):
            assert _contrast(TINTS[name][side], TINTS["ground"][side]) >= 4.5
