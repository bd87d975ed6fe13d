"""vLLM's control paths, which no agent may reach: sleep, pause, profile, weights, and the worst of them, rpc.

Most exist in a real vLLM with `VLLM_SERVER_DEV_MODE=1` only. Here they always do, so that a test can show that a proxy
does not let them through.
"""

from __future__ import annotations

from urllib.parse import parse_qs

from tests.fake_vllm.replies import Reply, document
from tests.fake_vllm.state import State

_DONE = {
    "/abort_requests": {"status": "aborted", "aborted": 0},
    "/collective_rpc": {"results": []},
    "/finish_weight_update": {"message": "Weight update finished"},
    "/init_weight_transfer_engine": {"message": "Weight transfer initialized"},
    "/start_weight_update": {"message": "Weight update started"},
    "/update_weights": {"message": "Weights updated"},
    "/release_kv_cache_memory": {"status": "kv_cache_released"},
}
_EMPTY = ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/start_profile", "/stop_profile")
_READ = {
    "/version": {"version": "0.32.0"},
    "/load": {"server_load": 0},
    "/server_info": {"vllm_config": "fake"},
    "/get_world_size": {"world_size": 1},
}


def reply(state: State, method: str, path: str, query: bytes) -> Reply | None:
    """The answer of a control path; None where there is no such path."""
    if method == "GET":
        if path in ("/health", "/ping"):
            return Reply(200, (b"",), None)
        if path == "/metrics":
            return Reply(200, (_metrics(state),), b"text/plain; version=0.0.4; charset=utf-8")
        if path in ("/is_sleeping", "/is_paused"):
            return document({path[1:]: state.sleeping if path == "/is_sleeping" else state.paused})
        return document(_READ[path]) if path in _READ else None
    if method != "POST":
        return None
    match path:
        case "/sleep":
            state.sleeping = True
            level = int(parse_qs(query.decode()).get("level", ["1"])[0])
            return document({"status": "sleeping", "level": level})
        case "/wake_up":
            state.sleeping = False
            return document({"status": "awake", "tags": parse_qs(query.decode()).get("tags")})
        case "/pause":
            state.paused = True
            return document({"status": "paused"})
        case "/resume":
            state.paused = False
            return document({"status": "resumed"})
    if path in _DONE:
        return document(_DONE[path])
    return Reply(200, (b"",)) if path in _EMPTY else None


def _metrics(state: State) -> bytes:
    """The gauge by which tests see what runs in the engine."""
    name = "vllm:num_requests_running"
    lines = (f"# TYPE {name} gauge", f'{name}{{engine="0",model_name="{state.base}"}} {float(state.running)}')
    return ("\n".join(lines) + "\n").encode()
