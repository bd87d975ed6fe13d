"""Progress along the versions: what each earned in the same groups as the others (DESIGN.md, section 1).

A member's reward is taken as an effect of its group (how hard the task was, how strict the judge) plus an effect of its
version plus noise. The effects of versions are found by least squares with a dummy for each group, which differences
within groups alone decide; a chain of groups that share versions is summed along by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from storage import groups
from storage.database import Database
from storage.types import GroupId, Owner, VersionNumber

_MOST_GROUPS = 1000
"""Of a scenario, the newest: the figure costs the same however much is kept."""
SOURCES = {groups.CLIENTS: "client", groups.WEIGHTED: "client, weighted"}
"""By whom a group was scored; whoever is not in it is a judge: ``ruler``."""
ABSOLUTE = "client"
"""The source whose rewards mean something outside of their group, too."""


class Scored(NamedTuple):
    """A member of a group, with its reward."""

    group: str
    version: VersionNumber
    reward: float


class Effect(NamedTuple):
    """By how much a version earns more than the reference, and how surely."""

    value: float
    standard_error: float | None
    """None: the groups have nothing left to tell the noise by."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A version in the groups of one scenario that one source scored."""

    version: VersionNumber
    sessions: int
    mean: float | None
    """Of its rewards; None where they say nothing in absolute terms."""
    reference: VersionNumber
    """The oldest version that a chain of groups leads to; effects of different references cannot be compared."""
    effect: float | None
    """Its reward minus that of the reference; None where no other version is connected with it."""
    standard_error: float | None
    reason: str | None
    """Why it cannot be compared with the oldest version of all."""


def of_scenario(db: Database, owner: Owner, scenario: str) -> dict[str, list[dict[str, Any]]]:
    """`along` for each source of rewards, as the admin API shows it.

    Every group counts whose scores are on record: trained, without variance, or for evaluation. A session that several
    versions sampled is left out.
    """
    found = db.all(
        'SELECT judge, "group", sampled_by, reward FROM (SELECT id, judge FROM groups'
        " WHERE scenario = ? AND owner = ? AND scored_at IS NOT NULL ORDER BY id DESC LIMIT ?)"
        ' JOIN group_members ON "group" = id WHERE reward IS NOT NULL AND sampled_by IS NOT NULL',
        (scenario, owner, _MOST_GROUPS),
    )
    by_source: defaultdict[str, list[Scored]] = defaultdict(list)
    for row in found:
        source = SOURCES.get(row["judge"], "ruler")
        by_source[source].append(Scored(GroupId(row["group"]), VersionNumber(row["sampled_by"]), row["reward"]))
    return {
        source: [asdict(one) for one in along(members, absolute=source == ABSOLUTE)]
        for source, members in sorted(by_source.items())
    }


def along(members: Sequence[Scored], *, absolute: bool) -> list[Progress]:
    """The versions that sampled ``members``, the oldest first; ``absolute``: whether means of rewards say something."""
    rewards: defaultdict[VersionNumber, list[float]] = defaultdict(list)
    for one in members:
        rewards[one.version].append(one.reward)
    references = connected(members)
    effects: dict[VersionNumber, Effect] = {}
    for reference in set(references.values()):
        effects |= fit([one for one in members if references[one.version] == reference])
    oldest = min(references, default=None)
    found = []
    for version, reference in sorted(references.items()):
        effect = effects.get(version)
        found.append(
            Progress(
                version=version,
                sessions=len(rewards[version]),
                mean=sum(rewards[version]) / len(rewards[version]) if absolute else None,
                reference=reference,
                effect=effect.value if effect else None,
                standard_error=effect.standard_error if effect else None,
                reason=f"unconnected: no chain of groups leads to version {oldest}" if reference != oldest else None,
            )
        )
    return found


def connected(members: Sequence[Scored]) -> dict[VersionNumber, VersionNumber]:
    """For each version the oldest one that it shares a group with, or that a chain of such groups leads to."""
    together = _versions_by_group(members)
    references = {one.version: one.version for one in members}
    for versions in together.values():
        joined = {references[version] for version in versions}
        if len(joined) > 1:
            first = min(joined)
            references = {
                version: first if reference in joined else reference for version, reference in references.items()
            }
    return references


def fit(members: Sequence[Scored]) -> dict[VersionNumber, Effect]:
    """The effects of versions that are connected, relative to the oldest; none where there is only one version.

    Ordinary least squares of the rewards on dummies of groups and versions, by its normal equations with the groups
    swept out (within-group differences). A group of a single version says nothing of effects, and is left out, as its
    noise may be another.
    """
    # A tenth of a second that nobody but who asks for progress should wait for.
    import numpy as np

    together = _versions_by_group(members)
    kept = [one for one in members if len(together[one.group]) > 1]
    if not kept:
        return {}
    names, group = np.unique([one.group for one in kept], return_inverse=True)  # (groups,), (members,)
    numbers, version = np.unique([one.version for one in kept], return_inverse=True)  # (versions,), (members,)
    rewards = np.array([one.reward for one in kept])
    counts = np.zeros((len(names), len(numbers)))
    np.add.at(counts, (group, version), 1.0)
    sizes = counts.sum(axis=1)

    def within(values: Any) -> Any:
        """Minus the mean of the group."""
        return values - (np.bincount(group, values) / sizes)[group]

    normal = np.diag(counts.sum(axis=0)) - (counts / sizes[:, None]).T @ counts  # (versions, versions)
    # Connected versions leave one direction open, that of all effects together: the oldest one's is 0.
    inverse = np.linalg.inv(normal[1:, 1:])
    effects = np.append(0.0, inverse @ np.bincount(version, within(rewards))[1:])
    left = within(rewards - effects[version])
    freedom = len(kept) - len(names) - (len(numbers) - 1)
    errors: list[float | None] = [None] * len(numbers)
    if freedom > 0:
        errors = np.append(0.0, np.sqrt(np.diag(inverse) * (left @ left) / freedom)).tolist()
    return {
        VersionNumber(number): Effect(effect, error)
        for number, effect, error in zip(numbers.tolist(), effects.tolist(), errors, strict=True)
    }


def _versions_by_group(members: Sequence[Scored]) -> Mapping[str, set[VersionNumber]]:
    together: defaultdict[str, set[VersionNumber]] = defaultdict(set)
    for one in members:
        together[one.group].add(one.version)
    return together
