"""`ivc migrate`, `attach`, `detach`, `save`, `load`: what the host does when a virtual machine moves.

    cli.py        the commands
    find.py       which machine is meant, and where it is
    journey.py    the sequence of a migration, and the way back from every step of it
    departure.py  its first half: let go of shared memory, and the way back
    inventory.py  which hosts there are, as an administrator has written it down
    order.py      the order in the region (ivc_suspend), and who is in there
    guests.py     which processes are a machine's
    room.py       whether a region can take a guest's processes
    lock.py       one at a time for each machine
    interrupts.py Ctrl-C
    show.py       progress: for a terminal, for a log, for a program

What is done with a machine is ../hypervisor's.
"""
