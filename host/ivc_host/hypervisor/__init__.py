"""What `ivc` does with virtual machines, whoever runs them.

    contract.py   what a hypervisor must be able to do
    faults.py     what can go wrong
    registry.py   which there are: the entry points of the group `ivc.hypervisors`
    host.py       one host, as it is written down
    reach.py      commands and sockets of a host, here or through ssh
    settings.py   the keys of a host in an inventory
    linux.py      what a Linux host says about itself
    qemu.py       QEMU, through qmp.py
    libvirt.py    libvirt, through its Python module
    processes.py  files and processes of this machine, for tests
    xen.py        Xen, through xl and, for the guests' processes, xenstore.py
"""
