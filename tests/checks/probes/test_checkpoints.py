"""The pieces of a checkpoint, by the file names of frameworks."""

from __future__ import annotations

from pathlib import Path

from preflight_checks.probes.checkpoints import checkpoint_state


def put(folder: Path, *names: str, text: str = "x") -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_deepspeed_with_its_newest_tag(tmp_path: Path) -> None:
    pieces = [f"global_step7/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(4)]
    put(tmp_path, *pieces, "global_step7/mp_rank_00_model_states.pt", "global_step3/mp_rank_00_model_states.pt")
    put(tmp_path, "latest", text="global_step7\n")
    put(tmp_path, "global_step7/zero_pp_rank_4_mp_rank_00_optim_states.pt", text="")
    seen = checkpoint_state({"path": str(tmp_path)})
    assert (seen.tag, seen.zero, seen.model) == ("global_step7", [0, 1, 2, 3, 4], [0])
    assert seen.hollow == ["zero_pp_rank_4_mp_rank_00_optim_states.pt"] and not seen.universal
    (tmp_path / "global_step7" / "zero").mkdir()
    assert checkpoint_state({"path": str(tmp_path)}).universal


def test_megatrons_iterations(tmp_path: Path) -> None:
    names = [f"iter_0000500/mp_rank_{t:02}_{p:03}/model_optim_rng.pt" for t in range(2) for p in range(4)]
    put(tmp_path, *names)
    put(tmp_path, "latest_checkpointed_iteration.txt", text="500")
    seen = checkpoint_state({"path": str(tmp_path)})
    assert (seen.tag, seen.tensor, seen.stages) == ("iter_0000500", [0, 1], [0, 1, 2, 3])
    put(tmp_path, "latest_checkpointed_iteration.txt", text="release")
    assert checkpoint_state({"path": str(tmp_path)}).problem == "tag"


def test_torch_and_hugging_face(tmp_path: Path) -> None:
    put(tmp_path, "__0_0.distcp", "__0_1.distcp", "__1_0.distcp", "rng_state_0.pth", "rng_state_1.pth")
    seen = checkpoint_state({"path": str(tmp_path)})
    assert (seen.distributed, seen.random, seen.index) == ([0, 1], [0, 1], False)
    put(tmp_path, ".metadata")
    assert checkpoint_state({"path": str(tmp_path)}).index


def test_a_file_an_empty_folder_and_nothing(tmp_path: Path) -> None:
    put(tmp_path, "model.pt", text="12345")
    assert checkpoint_state({"path": str(tmp_path / "model.pt")}).size_bytes == 5
    put(tmp_path, "hollow.pt", text="")
    assert checkpoint_state({"path": str(tmp_path / "hollow.pt")}).hollow == ["hollow.pt"]
    (tmp_path / "empty").mkdir()
    assert checkpoint_state({"path": str(tmp_path / "empty")}).problem == "empty"
    assert checkpoint_state({"path": str(tmp_path / "none")}).problem == "missing"


def test_a_tag_that_leaves_the_folder_is_ignored(tmp_path: Path) -> None:
    put(tmp_path / "run", "latest", text="../../etc")
    assert checkpoint_state({"path": str(tmp_path / "run")}).tag == ""
