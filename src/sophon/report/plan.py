"""Facts about a plan: what it does, what it gains and, given its profile, how it treats different samples."""

from __future__ import annotations

from sophon.plan.plan import Plan
from sophon.plan.resources import KINDS, kind_named
from sophon.profile.table import Profile
from sophon.report import outlook
from sophon.report.chart import Table, show
from sophon.report.facts import Facts, Headline, Section
from sophon.report.profile import busy_bars, cut_bars, plan_sections, policy_sections, profile_remarks, sample_sections
from sophon.report.words import Epoch, claim, given, part_words, ratio, sentences, times


def plan_facts(plan: Plan, profile: Profile | None = None) -> Facts:
    """Return the facts about a plan.

    Args:
        plan: The plan.
        profile: The profile that the plan was made from.

    Raises:
        ArtifactError: The profile belongs to a different job.
    """
    before, after = plan.untouched, plan.prediction
    remarks = [f"Planned for {given(plan.resources)}."]
    if profile is None:
        sections: tuple[Section, ...] = (
            Section(
                "What the plan does", f"The policy {plan.policy}: {plan.reason}.", (cut_bars(plan), busy_bars(plan))
            ),
        )
        remarks.append("Details per sample and what-ifs need the plan's profile: give --profile FILE.")
    else:
        plan.require(pipeline=profile.pipeline, dataset=profile.dataset, samples=len(profile), recipe=profile.recipe)
        found = outlook.predictions(profile, plan.resources, plan.options)
        sections = (
            *plan_sections(plan, profile),
            *policy_sections(profile, plan.resources, found),
            *sample_sections(profile),
        )
        remarks += profile_remarks(profile)
    words = sentences(Epoch.of(before), Epoch.of(after), plan.policy, measured=False)
    return Facts(
        title="What this plan does",
        subject=f"Plan for {len(plan):,} samples by the policy {plan.policy}",
        words=(*words, *_proof(plan)),
        headlines=(
            Headline(times(ratio(before.epoch_s, after.epoch_s)), "shorter epoch predicted"),
            Headline(times(ratio(before.link_bytes, after.link_bytes)), "fewer bytes on the link"),
            Headline(show(after.epoch_s, "seconds"), "per epoch"),
        ),
        summary=_table(plan),
        sections=sections,
        remarks=tuple(remarks),
        claim=claim(Epoch.of(before), Epoch.of(after), plan.policy, measured=False),
    )


def _proof(plan: Plan) -> tuple[str, ...]:
    bound_s = plan.prediction.bound_s
    if bound_s is None or not 0 < bound_s < float("inf"):
        return ()
    over = plan.prediction.epoch_s / bound_s - 1
    faster = f"more than {100 * over:.2g} % faster" if over > 1e-9 else "faster"
    return (f"{plan.rivals} can be {faster}.",)


def _table(plan: Plan) -> Table:
    rows = []
    both = (plan.untouched, plan.prediction)
    rows.append(("epoch", *(show(made.epoch_s, "seconds") for made in both)))
    for kind in KINDS:
        if kind.amount in plan.prediction.used:
            unit = "bytes" if kind.amount.endswith("bytes") else "seconds"
            rows.append((kind.amount_words, *(show(made.used[kind.amount], unit) for made in both)))
    for label in plan.prediction.busy_s:
        kind, of, node = kind_named(label), *label.partition(" of ")[1:]
        rows.append((f"{kind.busy_words}{of}{node}", *(show(made.busy_s[label], "seconds") for made in both)))
    decides = [part_words(made.bottleneck) for made in both]
    return Table(("per epoch", "raw files", plan.policy), (*rows, ("what decides", *decides)))
