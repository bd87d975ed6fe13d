"""The policy table: from a finished run to the version that answers agents.

The proxy alone loads adapters into vLLM. A version is loaded under a name that is never used again, from a folder whose
digest is checked, and is probed on every server before the first agent gets it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from proxy.errors import UpstreamFault
from proxy.probe import ProbeResult, ProbeRow, Verdict, probe
from proxy.sessions import SessionTable
from proxy.upstreams import Upstream, Upstreams
from storage import runs, versions
from storage.database import Database
from storage.states import VersionState
from storage.types import BASE, Run, Version, VersionNumber, parse_version, version_name

_log = logging.getLogger("slipstream.versions")

MANIFEST = "manifest.json"
WEIGHTS = "adapter_model.safetensors"
NO_RUNTIME_ADAPTERS = (
    "vLLM cannot load adapters while it runs: start it with `--enable-lora` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
)
_TRIES = 3
_WANTED_SECONDS = 300.0
"""So long a version that a call named stays loaded, whatever its state."""
_NO_ADAPTER = "No adapter found"
"""In vLLM's 404 for a folder; its 404 for the path itself says that adapters cannot be loaded."""
_UNREADABLE = (OSError, ValueError, KeyError, TypeError)
"""What reading a manifest that is not one raises."""
_SERVED = (VersionState.LIVE, VersionState.STANDBY)
_NEW = (VersionState.TRAINED, VersionState.VERIFIED)


class AdapterFault(Exception):
    """An adapter's folder is not what its manifest says; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Manifest:
    digest: str
    probe: list[ProbeRow]


class Policy:
    """The versions and their states; `refresh` carries each as far as it can go."""

    def __init__(self, db: Database, name: str, adapters: Path, upstreams: Upstreams) -> None:
        versions.ensure_base(db, time.time())
        self._db = db
        self.name = name
        self._adapters = adapters
        self._upstreams = upstreams
        self._live = versions.live(db).number
        self._known = {v.number for v in versions.all_versions(db) if v.state is not VersionState.REJECTED}
        self._wanted: dict[VersionNumber, float] = {}
        """When a call last named a version, or found it not loaded."""
        self._tries: dict[VersionNumber, int] = {}
        self._failed: set[VersionNumber] = set()
        """Versions that could not be loaded or probed when it was last tried."""
        self._faults: list[str] = []
        self.problem: str | None = None
        """What kept the last step from loading or probing a version, in words."""

    def live(self) -> VersionNumber:
        """The version for new sessions."""
        return self._live

    def knows(self, number: VersionNumber) -> bool:
        """Whether agents may name the version: it was made, and not rejected."""
        return number in self._known

    def want(self, number: VersionNumber) -> None:
        """A call needs this version, whatever its state: a retired one is loaded again at the next step."""
        self._wanted[number] = time.monotonic()

    def comes(self, number: VersionNumber) -> bool:
        """Whether a version that no server has loaded is expected to be there soon."""
        return number not in self._failed

    def model(self, upstream: Upstream, number: VersionNumber) -> str:
        """The name under which ``upstream`` serves a version."""
        return upstream.base or "" if number == BASE else version_name(self.name, number)

    async def refresh(self, table: SessionTable) -> None:
        """One step: take over new versions, load what must be loaded, probe, make live, retire."""
        self._faults = []
        since = time.monotonic() - _WANTED_SECONDS
        self._wanted = {number: at for number, at in self._wanted.items() if at > since}
        wanted = table.pinned() | self._wanted.keys()
        for run in await asyncio.to_thread(runs.succeeded_after, self._db, versions.newest_number(self._db)):
            await asyncio.to_thread(self._take_over, run)
        for version in await asyncio.to_thread(versions.all_versions, self._db):
            if version.state in _NEW:
                await self._verify(version)
            elif version.number != BASE and (version.state in _SERVED or version.number in wanted):
                await self._keep_loaded(version)
        await self._retire(table.pinned())
        await self._unload_unneeded(table.pinned() | self._wanted.keys())
        self.problem = "; ".join(self._faults) or None

    def _take_over(self, run: Run) -> None:
        assert run.version is not None
        folder = self._adapters / version_name(self.name, run.version)
        try:
            digest = orjson.loads((folder / MANIFEST).read_bytes())["sha256"][WEIGHTS]
        except _UNREADABLE:
            digest = ""  # the next thing that is done with it rejects it, and says why
        with self._db.transaction():
            versions.add(self._db, run, str(folder), digest, time.time())
        self._known.add(run.version)

    async def _verify(self, version: Version) -> None:
        ready = [u for u in self._upstreams.all if u.doubt is None]
        if not ready:
            return
        results = []
        for upstream in ready:
            try:
                results.append(await self._load_and_probe(version, upstream))
            except AdapterFault as fault:
                await self._reject(version, str(fault))
                return
            except UpstreamFault as fault:
                self._failed.add(version.number)
                await self._try_again(version, fault)
                return
        await asyncio.to_thread(self._make_live, version, results[0])

    async def _try_again(self, version: Version, fault: UpstreamFault) -> None:
        """vLLM may be going away, and then the next step tries again; but not for ever what vLLM itself answers."""
        self._fault(f"{version_name(self.name, version.number)} could not be loaded or probed: {fault}")
        if fault.status is not None:
            self._tries[version.number] = self._tries.get(version.number, 0) + 1
            if self._tries[version.number] >= _TRIES:
                await self._reject(version, f"vLLM failed to load or to probe it {_TRIES} times: {fault}")

    async def _load_and_probe(self, version: Version, upstream: Upstream) -> ProbeResult:
        """Make ``upstream`` serve the version, proven. Raises `AdapterFault` where it is not the trained adapter."""
        manifest = await asyncio.to_thread(read_manifest, version, self._adapters)
        await self._load(version, upstream)
        result = await self._probe(version, manifest, upstream)
        now, verdict = time.time(), result.verdict
        await asyncio.to_thread(versions.set_loading, self._db, version.number, upstream.url, now, verdict)
        if verdict is Verdict.WRONG:
            raise AdapterFault(
                f"the probe failed: slope {result.slope} ± {result.standard_error} where 1 was expected, "
                f"at {upstream.url}"
            )
        upstream.serves.add(version.number)
        self._failed.discard(version.number)
        return result

    async def _probe(self, version: Version, manifest: Manifest, upstream: Upstream) -> ProbeResult:
        """Compare the version with its parent. Where that one is spoiled, name, path and digest must do."""
        parent = version.parent or BASE
        if parent != BASE:
            before = await asyncio.to_thread(versions.get, self._db, parent)
            try:
                await asyncio.to_thread(read_manifest, before, self._adapters)
                await self._load(before, upstream)
            except AdapterFault as fault:
                self._fault(f"{version_name(self.name, version.number)} cannot be compared with its parent: {fault}")
                return ProbeResult(Verdict.IDENTITY_ONLY, None, None, 0)
        names = self.model(upstream, parent), self.model(upstream, version.number)
        return await probe(self._db, self._upstreams, upstream, manifest.probe, *names)

    async def _load(self, version: Version, upstream: Upstream) -> None:
        name = version_name(self.name, version.number)
        if name not in upstream.adapters:
            document = {"lora_name": name, "lora_path": version.path}
            try:
                await self._upstreams.post(upstream, "/v1/load_lora_adapter", document)
            except UpstreamFault as fault:
                if fault.status == 404 and _NO_ADAPTER not in str(fault):
                    raise UpstreamFault(f"{upstream.url}: {NO_RUNTIME_ADAPTERS}") from fault
                if fault.is_refusal:
                    raise AdapterFault(f"vLLM refuses the adapter: {fault}") from fault
                raise
            await self._upstreams.check(upstream, self.name)
            if upstream.doubt is not None:
                raise UpstreamFault(f"{upstream.url}: {upstream.doubt}")
        if upstream.adapters.get(name) != version.path:
            raise AdapterFault(f"vLLM at {upstream.url} serves {name} from {upstream.adapters.get(name)!r}")

    async def _keep_loaded(self, version: Version) -> None:
        """After a restart of vLLM, which forgets its adapters: load and probe the version again."""
        for upstream in self._upstreams.all:
            if upstream.doubt is None and version.number not in upstream.serves:
                try:
                    await self._load_and_probe(version, upstream)
                except (AdapterFault, UpstreamFault) as fault:
                    self._failed.add(version.number)
                    self._fault(f"{version_name(self.name, version.number)} cannot be served: {fault}")

    def _make_live(self, version: Version, result: ProbeResult) -> None:
        now = time.time()
        with self._db.transaction():
            versions.set_probe(self._db, version.number, result.as_dict())
            if version.state is VersionState.TRAINED:
                versions.move(self._db, version.number, VersionState.VERIFIED, None, now)
            versions.move(self._db, self._live, VersionState.STANDBY, None, now)
            versions.move(self._db, version.number, VersionState.LIVE, None, now)
        self._live = version.number
        _log.info("%s is live (%s)", version_name(self.name, version.number), result.verdict)

    async def _reject(self, version: Version, reason: str) -> None:
        now = time.time()
        await asyncio.to_thread(versions.move, self._db, version.number, VersionState.REJECTED, reason, now)
        self._known.discard(version.number)
        for upstream in self._upstreams.all:
            await self._unload(version.number, upstream)
        _log.error("%s is rejected: %s", version_name(self.name, version.number), reason)

    def _fault(self, text: str) -> None:
        self._faults.append(text)
        if text not in (self.problem or ""):
            _log.warning(text)

    async def _retire(self, pinned: set[VersionNumber]) -> None:
        """Versions behind the newest standby, named by no open session, are not kept loaded any more."""
        all_versions = await asyncio.to_thread(versions.all_versions, self._db)
        standby = [v.number for v in all_versions if v.state is VersionState.STANDBY and v.number != BASE]
        for number in standby[:-1]:
            if number not in pinned:
                await asyncio.to_thread(versions.move, self._db, number, VersionState.RETIRED, None, time.time())

    async def _unload_unneeded(self, used: set[VersionNumber]) -> None:
        """Adapters that nobody needs leave vLLM: retired versions, and parents that only a probe asked for."""
        all_versions = await asyncio.to_thread(versions.all_versions, self._db)
        needed = used | {v.number for v in all_versions if v.state in (*_SERVED, *_NEW)}
        needed |= {v.parent for v in all_versions if v.state in _NEW and v.parent is not None}
        for upstream in self._upstreams.all:
            for name in list(upstream.adapters):
                number = parse_version(self.name, name)
                if number is not None and number not in needed:
                    await self._unload(number, upstream)

    async def _unload(self, number: VersionNumber, upstream: Upstream) -> None:
        upstream.serves.discard(number)
        name = version_name(self.name, number)
        if upstream.doubt is None and name in upstream.adapters:
            try:
                await self._upstreams.post(upstream, "/v1/unload_lora_adapter", {"lora_name": name})
            except UpstreamFault as fault:
                self._fault(f"{name} stays loaded: {fault}")
            else:
                del upstream.adapters[name]


def read_manifest(version: Version, adapters: Path) -> Manifest:
    """The manifest of a version's folder, checked: inside the adapter root, the weights' digest as recorded.

    Raises `AdapterFault`.
    """
    folder = Path(version.path or "")
    if folder.resolve().parent != adapters.resolve():
        raise AdapterFault(f"{folder} does not lie in {adapters}")
    try:
        document: dict[str, Any] = orjson.loads((folder / MANIFEST).read_bytes())
        with (folder / WEIGHTS).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        # Older manifests had copied the ids: where their sessions are deleted nobody could tell.
        rows = [ProbeRow(**row) for row in document["probe"] if "ids" not in row]
        manifest = Manifest(document["sha256"][WEIGHTS], rows)
    except _UNREADABLE as error:
        raise AdapterFault(f"{folder} cannot be read: {type(error).__name__}: {error}") from error
    if digest != version.digest or manifest.digest != digest:
        raise AdapterFault(f"{folder / WEIGHTS} is not the file that was trained: its sha256 is {digest}")
    return manifest


def as_dict(version: Version, policy: str) -> dict[str, Any]:
    """A version as the admin API shows it."""
    return {"name": version_name(policy, version.number), **asdict(version)}
