"""The real agent on a machine whose veth devices are NICs: `--attach auto` uses native XDP there, and tc on virtual devices.

`python -m tests.e2e.nic_agent agent ...`.
"""

from __future__ import annotations

from lbagent.bpf.load.devices import Device
from lbagent.cli.main import main


def virtual(device: Device) -> bool:
    """As Device.virtual, except for veth."""
    return device.loopback or device.kind not in ("", "veth")


setattr(Device, "virtual", property(virtual))  # noqa: B010  a class of the agent is changed on purpose

if __name__ == "__main__":
    main()
