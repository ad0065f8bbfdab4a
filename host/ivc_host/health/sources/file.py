"""Files that an administrator, or a program of his, makes: the first line is the reason.

He has made up his mind: no second reading is waited for, and a file that is gone is his word, too.
"""

from __future__ import annotations

from ..contract import HostSource, Level, Options, Reading
from ..hostfiles import HostFiles


class FileOptions(Options):
    failing: str = "/etc/ivc/failing"
    warning: str = "/etc/ivc/warning"


class FileSource(HostSource[FileOptions]):
    Options = FileOptions
    confirm = 1
    latches = False

    async def read_host(self, host: HostFiles) -> list[Reading]:
        paths = {Level.FAILING: self.options.failing, Level.WARNING: self.options.warning}
        files = await host.read(*paths.values())
        for level, path in paths.items():
            if path in files:
                reason = files[path].strip().split("\n")[0] or f"{path} is there"
                return [self.reading(host, "administrator/file", level, reason)]
        text = "no administrator has marked it"
        return [self.reading(host, "administrator/file", Level.OK, text)]
