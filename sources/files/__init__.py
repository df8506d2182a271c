"""Files as a source: a twophase table by epoch, or a plain folder by a journal of taken files."""

from twophase.sources.files.options import FilesSourceOptions
from twophase.sources.files.source import FilesSource
from twophase.sources.files.split import FilesSplit

__all__ = ["FilesSource", "FilesSourceOptions", "FilesSplit"]
