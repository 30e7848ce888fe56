"""What reports say, before it is drawn."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sophon.codec.cut import RAW
from sophon.errors import ArtifactError, ConfigError
from sophon.plan.plan import make_plan
from sophon.plan.resources import Resources
from sophon.report.chart import Bars, Lines, Spans, Stacks
from sophon.report.outlook import thin
from sophon.report.paper import paper_facts
from sophon.report.plan import plan_facts
from sophon.report.profile import profile_facts
from sophon.report.write import facts_of
from tests.report.conftest import RESOURCES
from tests.support.instances import profile_of, random_profile
from tests.support.results import full_result, minimal_result


def _chart(facts, key):
    (found,) = [chart for chart in facts.charts if chart.key == key]
    return found


def test_a_full_result_has_every_figure():
    facts = paper_facts(full_result())
    keys = [chart.key for chart in facts.charts]
    assert len(set(keys)) == len(keys)
    assert set(keys) == {
        "epoch-seconds", "traffic", "predicted", "busy", "idle", "timeline", "cuts-sophon", "cuts-optimal",
        "smallest-imagenet", "smallest-cuts-imagenet", "bytes-after-ops", "efficiency-imagenet",
        "gain-imagenet-traffic", "gain-imagenet-time", "cores-seconds", "cores-traffic", "cores-predicted", "models",
    }  # fmt: skip
    assert not any("Not in this result" in remark for remark in facts.remarks)
    assert "2.4× sooner" in facts.words[0]
    assert "All 6 policies fed the model identical bits." in facts.words


def test_the_papers_values_stand_beside_ours():
    facts = paper_facts(full_result())
    bars = {bar.label: bar for bar in _chart(facts, "traffic").bars}
    assert bars["sophon"].beside == pytest.approx(24.1e6 / 1.2)
    assert bars["optimal"].beside is None
    assert [row[5] for row in facts.summary.rows][:2] == ["1.00×", "0.20×"]


def test_a_column_of_the_summary_that_says_nothing_is_left_out():
    header = paper_facts(minimal_result()).summary.header
    assert header == ("policy", "epoch", "shorter by", "bytes", "fewer by")
    result = full_result()
    del result["paper"]
    assert set(paper_facts(full_result()).summary.header) - set(paper_facts(result).summary.header) == {"in the paper"}


def test_parts_that_are_missing_are_left_out_with_a_remark():
    facts = paper_facts(minimal_result())
    assert {chart.key for chart in facts.charts} == {"epoch-seconds", "traffic"}
    assert "what training waits for over time" in facts.remarks[-1]
    assert "was not recorded" in facts.words[-1]


@pytest.mark.parametrize("figure", ["1a", "1b", "1c", "1d", "3", "4"])
def test_any_single_figure_may_be_missing(figure):
    result = full_result()
    del result["figures"][figure]
    facts = paper_facts(result)
    assert len(facts.charts) < len(paper_facts(full_result()).charts)
    assert any("Not in this result" in remark for remark in facts.remarks)


def test_different_bits_are_not_passed_over():
    result = full_result()
    result["policies"]["all"]["sha256"] = "00" * 32
    assert "do not trust this run" in paper_facts(result).words[-1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda result: result.update(policies={}),
        lambda result: result["policies"]["none"].update(epoch_s=None),
        lambda result: result["policies"]["none"].update(epoch_s="fast"),
        lambda result: result["policies"]["none"].update(link_bytes=-1),
        lambda result: result["policies"]["none"].update(idle_share=float("nan")),
        lambda result: result["policies"].update(none=[]),
        lambda result: result.update(figures=[]),
        lambda result: result["figures"]["1c"]["datasets"]["imagenet"].update(bytes_per_cpu_s="many"),
        lambda result: result["figures"]["4"]["policies"].update(none={}),
        lambda result: result["figures"]["1d"].update(models=[1]),
    ],
)
def test_nonsense_is_an_error_of_ours(damage):
    result = full_result()
    damage(result)
    with pytest.raises(ArtifactError):
        paper_facts(result)


def test_a_profile_tells_what_samples_weigh_and_what_plans_would_do(profile):
    facts = profile_facts(profile)
    kinds = {chart.key: type(chart) for chart in facts.charts}
    assert kinds == {
        "bytes-after-ops": Lines, "efficiency": Lines, "smallest-ops": Bars, "smallest-cuts": Bars,
        "cuts": Bars, "busy": Bars, "cuts-by-size": Stacks, "epoch-seconds": Bars, "traffic": Bars,
        "cores-seconds": Lines, "cores-traffic": Lines, "link-seconds": Lines, "link-bottleneck": Spans,
    }  # fmt: skip
    for key in ("smallest-ops", "smallest-cuts", "cuts"):
        assert sum(bar.value for bar in _chart(facts, key).bars) == pytest.approx(1.0)
    assert sum(sum(layer.counts) for layer in _chart(facts, "cuts-by-size").layers) == len(profile)
    assert any("assumed" in remark for remark in facts.remarks)


def test_a_loaders_profile_is_shown_with_what_the_loader_found(profile):
    facts = profile_facts(replace(profile, provenance={"resources": RESOURCES.to_json()}))
    assert "a link of 40 Mbit/s, 1 storage core, 2 trainer cores, a consumer of 2,000/s" in facts.remarks[0]
    assert "measured by the loader" in facts.remarks[1]
    odd = profile_facts(replace(profile, provenance={"resources": {"link": 1}, "ops": ["<b>", 3]}))
    assert any("assumed" in remark for remark in odd.remarks)


def test_what_ifs_agree_with_the_plan_where_they_meet(profile, plan):
    facts = plan_facts(plan, profile)
    for key, place in (("cores-seconds", 1.0), ("link-seconds", 5e6)):
        (line,) = [line for line in _chart(facts, key).lines if line.label == "optimal"]
        assert dict(line.points)[place] == pytest.approx(plan.prediction.epoch_s)


def test_a_plan_alone_tells_what_it_wins_and_what_it_needs(plan):
    facts = plan_facts(plan)
    assert [chart.key for chart in facts.charts] == ["cuts", "busy"]
    assert any("--profile" in remark for remark in facts.remarks)


def test_a_plan_of_another_job_is_refused(profile, plan):
    with pytest.raises(ArtifactError, match="another dataset"):
        plan_facts(plan, replace(profile, dataset="other"))


def test_the_smallest_profile_can_be_shown():
    tiny = profile_of([[100.0]], [[0.0]], [[0.0]])
    facts = profile_facts(tiny, Resources(1e6, 0, 1))
    assert {bar.label: bar.value for bar in _chart(facts, "smallest-cuts").bars} == {"0:raw, raw file": 1.0}


def test_a_large_profile_is_thinned_and_scaled():
    profile = random_profile(np.random.default_rng(1), 120_000)
    profile = replace(profile, sizes=np.full((len(profile), 2), 7))
    thinned = thin(profile)
    assert len(thinned.profile) <= 50_000
    assert thinned.scale == len(profile) / len(thinned.profile)
    raw = profile.column(RAW)
    assert (thinned.profile.payload_bytes[:, raw] == profile.payload_bytes[::3, raw]).all()


def test_options_that_do_not_belong_are_refused(profile, plan):
    with pytest.raises(ConfigError, match="--profile"):
        facts_of(profile, profile=profile)
    with pytest.raises(ConfigError, match="--link"):
        facts_of(plan, resources=RESOURCES)


def test_facts_are_json(profile, plan):
    for facts in (
        paper_facts(full_result()),
        plan_facts(plan, profile),
        plan_facts(make_plan(profile, RESOURCES, "none")),
    ):
        data = facts.to_json()
        json.dumps(data)
        assert all(
            chart["kind"] in ("bars", "lines", "stacks", "spans") for s in data["sections"] for chart in s["charts"]
        )
