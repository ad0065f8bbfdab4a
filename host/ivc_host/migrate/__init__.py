"""`ivc migrate`, `ivc attach`, `ivc detach`, `ivc save`: what the host does when a virtual machine moves.

    cli.py        the commands
    find.py       which machine is meant, and where it is
    journey.py    the sequence of a migration, and the way back from every step of it
    departure.py  its first half: let go of the region, and the way back
    machine.py    the contract: what a hypervisor must be able to do
    qemu.py       QEMU, through qmp.py
    inventory.py  which hosts there are, as an administrator has written it down
    reach.py      commands and sockets of a host, here or through ssh
    order.py      the order in the region (ivc_suspend), and who is in there
    guests.py     which processes are a machine's
    room.py       whether a region can take a guest's processes
    lock.py       one at a time for each machine
    interrupts.py Ctrl-C
    show.py       progress: for a terminal, for a log, for a program
"""
