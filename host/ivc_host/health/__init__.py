"""`ivc guard`: the health and the load of hosts, and which of them are spare.

    cli.py        the commands
    contract.py   what a source of health is: levels, readings, options
    sources/      the project's own sources, one a file
    judge.py      readings over time -> the state of each host
    load.py       what a source of load is; load_proc.py, load_prometheus.py: the project's own
    spares.py     states, loads and machines -> which hosts are spare, and why the others are not
    round.py      asks all sources once
    past.py       what was read before: a file of SQLite
    settings.py   guard.toml
    hostfiles.py  files and commands of a host, through the inventory's reach
    web.py        JSON by HTTP
    webhook.py    alerts that Alertmanager sends
    registry.py   sources by entry point

Calls go downwards only: cli, round, sources, contract. `judge` and `spares` are pure.
"""
