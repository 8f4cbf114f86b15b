"""One error convention: the system call layer raises OSError, and the caller that has the name maps it to a KernelError."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lbagent.errors import KernelError, Unsupported
from lbagent.kernel import bpf_link, bpf_map, bpf_prog, bpffs, bpfsys
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.kernel.opcodes import returning

NO_FD = 1 << 20


@pytest.mark.root
@pytest.mark.bpf
@pytest.mark.parametrize(
    "refused",
    [
        lambda: bpf_map.map_info(NO_FD),
        lambda: bpf_map.map_update(NO_FD, b"", b""),
        lambda: bpf_map.map_lookup(NO_FD, bytes(4), 4),
        lambda: bpf_map.map_delete(NO_FD, bytes(4)),
        lambda: bpf_prog.prog_test_run(NO_FD, bytes(64)),
        lambda: bpf_prog.prog_info(NO_FD),
        lambda: bpf_link.link_info(NO_FD),
        lambda: bpf_link.link_update(NO_FD, NO_FD),
        lambda: bpf_link.link_detach(NO_FD),
    ],
)
def test_a_descriptor_that_is_none_is_an_oserror(refused) -> None:
    with pytest.raises(OSError) as caught:
        refused()
    assert caught.value.errno in (errno.EBADF, errno.EBADFD)


@pytest.mark.root
@pytest.mark.bpf
def test_pins_by_path_name_the_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bpfsys.obj_get(str(tmp_path / "nothing"))
    with pytest.raises(KernelError, match=f"open pin on {tmp_path}/nothing failed") as caught:
        bpffs.open_pin(tmp_path / "nothing")
    assert caught.value.errno == errno.ENOENT
    fd = bpf_map.map_create(2, 4, 4, 1, name="lb_test")
    try:
        assert bpf_map.map_info(fd)[2:5] == (4, 4, 1)
        with pytest.raises(KernelError, match=f"pin on {tmp_path}/map failed"):
            bpffs.pin(fd, tmp_path / "map")  # no bpf file system
    finally:
        os.close(fd)


@pytest.mark.root
@pytest.mark.bpf
def test_a_refused_program_is_a_result_with_the_log() -> None:
    done = bpf_prog.prog_load(bpf_prog.ProgType.XDP, returning(2)[:8], "lb_test", log_level=bpf_prog.LOG_TEXT)
    assert done.fd < 0
    assert done.errno == errno.EINVAL
    assert done.log


def test_errors_get_the_name_at_the_border() -> None:
    with (
        pytest.raises(KernelError, match="read on lb4_service failed: .*; look there") as caught,
        kernel_errors("read", "lb4_service", "look there"),
    ):
        raise bpfsys.os_error(errno.EIO)
    assert (caught.value.op, caught.value.errno, caught.value.subject) == ("read", errno.EIO, "lb4_service")
    with pytest.raises(Unsupported), kernel_errors("read", "lb4_service"):
        raise bpfsys.os_error(errno.ENOSYS)
