"""What is known of HDFS without one: what answers mean, how long is waited, which settings and places there are."""

from __future__ import annotations

import errno
import pickle
import threading
import time

import pytest

from twophase.clients.hdfs.answers import NotTaken, lost, refusal
from twophase.clients.hdfs.native import _told
from twophase.clients.hdfs.patience import Overdue, bounded, patiently
from twophase.clients.hdfs.settings import HdfsSettings
from twophase.clients.hdfs.storage import NativeStorage, WebStorage
from twophase.errors import OptionError
from twophase.secret import Secret
from twophase.storage_of import storage_of

TRACE = "\n\tat org.apache.hadoop.hdfs.server.namenode.FSDirRenameOp.renameTo(FSDirRenameOp.java:577)"
PATH = "/folder/name"

# ---- answers ----


@pytest.mark.parametrize(
    ("exception", "said", "kind"),
    [
        ("java.io.FileNotFoundException", "rename source /a is not found.", FileNotFoundError),
        ("FileNotFoundException", "rename destination parent /a/b not found.", FileNotFoundError),
        ("FileNotFoundException", "Path is not a file: /a", IsADirectoryError),
        ("org.apache.hadoop.fs.FileAlreadyExistsException", "rename destination /a already exists", FileExistsError),
        ("FileAlreadyExistsException", "The source /a and destination /a are the same", FileExistsError),
        ("java.io.IOException", "Source /a and destination /b must both be directories", FileExistsError),
        ("org.apache.hadoop.fs.ParentNotDirectoryException", "/a (is not a directory)", NotADirectoryError),
        ("org.apache.hadoop.security.AccessControlException", "Permission denied: user=x", PermissionError),
        ("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Name node is in safe mode.", NotTaken),
        ("org.apache.hadoop.ipc.StandbyException", "Operation category WRITE is not supported", NotTaken),
        ("RetriableException", "Namenode is in startup mode", NotTaken),
        ("org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException", "No lease on /a", FileNotFoundError),
    ],
)
def test_an_exception_of_the_name_node_is_the_error_that_says_the_same(
    exception: str, said: str, kind: type[OSError]
) -> None:
    error = refusal(exception, said + TRACE, PATH)

    assert type(error) is kind
    assert error.errno is not None
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("exception", "said", "number"),
    [
        ("FSLimitException$PathComponentTooLongException", "The maximum path component", errno.ENAMETOOLONG),
        ("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "The DiskSpace quota", errno.EDQUOT),
        ("java.io.IOException", "Rename destination /a/b is a directory or file under source /a", errno.EINVAL),
        ("java.io.IOException", "File /a could only be written to 0 of the 1 minReplication nodes", errno.ENOSPC),
        ("java.lang.NullPointerException", "", errno.EIO),
    ],
)
def test_an_exception_without_a_class_of_errors_has_a_number_all_the_same(
    exception: str, said: str, number: int
) -> None:
    assert refusal(exception, said, PATH).errno == number


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (FileNotFoundError("rename source /a is not found." + TRACE), FileNotFoundError),
        (FileNotFoundError("Path is not a file: /a" + TRACE), IsADirectoryError),
        (FileExistsError("rename destination /a already exists" + TRACE), FileExistsError),
        (RuntimeError('RPCError("java.io.IOException", "Source /a and /b must both be files\\n\\tat x")'), FileExistsError),
        (RuntimeError('RPCError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot create")'), NotTaken),
        (RuntimeError('FatalRPCError("org.apache.hadoop.ipc.StandbyException", "standby")'), NotTaken),
        (OSError("Connection refused (os error 111)"), NotTaken),
        (OSError("Connection reset by peer (os error 104)"), TimeoutError),
        (OSError("unexpected end of file"), TimeoutError),
        (RuntimeError("anything else"), TimeoutError),
    ],
)  # fmt: skip
def test_what_hdfs_native_raises_is_told_apart_by_its_words(raised: Exception, kind: type[Exception]) -> None:
    told = _told("rename", PATH, raised, data=False)

    assert type(told) is kind
    assert isinstance(told, OSError)
    assert told.errno is not None


def test_trouble_with_data_is_never_taken_for_a_request_that_nobody_took() -> None:
    """A DataNode that refuses connections says nothing of the NameNode; and the file is begun by then."""
    told = _told("write", PATH, OSError("Connection refused (os error 111)"), data=True)

    assert type(told) is OSError
    assert told.errno == errno.EIO


def test_every_error_crosses_to_another_process() -> None:
    for error in (NotTaken("why"), lost("rename", PATH, "why"), refusal("X", "y", PATH)):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))


# ---- patience ----


def test_what_nobody_took_is_asked_again_until_patience_ends() -> None:
    tries = []

    def call() -> int:
        tries.append(time.monotonic())
        if len(tries) < 4:
            raise NotTaken("not yet")
        return 7

    assert patiently(call, 30) == 7
    assert len(tries) == 4

    tries.clear()
    with pytest.raises(NotTaken):
        patiently(lambda: (_ for _ in ()).throw(NotTaken("never")), 0.3)


def test_a_lost_reply_and_a_refusal_are_not_asked_again() -> None:
    for error in (lost("rename", PATH, "x"), FileNotFoundError(errno.ENOENT, "gone")):
        tries: list[int] = []

        def call(error: OSError = error, tries: list[int] = tries) -> None:
            tries.append(1)
            raise error

        with pytest.raises(type(error)):
            patiently(call, 30)
        assert tries == [1]


def test_a_call_that_does_not_return_is_given_up_and_one_that_fails_says_why() -> None:
    over = threading.Event()
    began = time.monotonic()
    with pytest.raises(Overdue):
        bounded(lambda: over.wait(60), 0.2)
    over.set()
    assert time.monotonic() - began < 10
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, 10)
    assert bounded(lambda: None, 10) is None


# ---- settings and places ----


def test_settings_are_ours_or_hadoops_and_nothing_else() -> None:
    settings = HdfsSettings.of(
        {"patiencems": "5", "dfs.ha.namenodes.c1": "nn1,nn2", "delegationToken": Secret("env:X")}
    )

    assert settings.patience_ms == 5
    assert settings.hadoop.reveal() == {"dfs.ha.namenodes.c1": "nn1,nn2"}
    assert settings.delegation_token == Secret("env:X")
    assert hash(settings) == hash(pickle.loads(pickle.dumps(settings)))
    with pytest.raises(OptionError, match=r"unknown option hdfs\.patience:"):
        HdfsSettings.of({"patience": "5"})
    with pytest.raises(OptionError, match=r"need hdfs\.kerberosPrincipal"):
        HdfsSettings.of({"kerberosKeytab": "/keys"})


def test_the_url_chooses_the_client() -> None:
    assert isinstance(storage_of("hdfs://nn:8020/a"), NativeStorage)
    assert isinstance(storage_of("webhdfs://nn:9870/a"), WebStorage)
    assert storage_of("swebhdfs://nn:9871/a").normalise("swebhdfs://nn:9871//a/") == "swebhdfs://nn:9871/a"
    assert storage_of("hdfs://nn:8020/a").normalise("/a//b/") == "hdfs://nn:8020/a/b"
    assert storage_of("hdfs://nn/a") == storage_of("hdfs://nn/b")
    assert storage_of("hdfs://nn/a") != storage_of("hdfs://nn/a", hdfs={"patienceMs": "1"})


@pytest.mark.parametrize(
    "path", ["hdfs:///a", "hdfs:/a", "hdfs://nn/a/../b", "hdfs://nn/a:b", "webhdfs:///x", "hdfs://nn/a/./b"]
)
def test_a_path_that_names_no_place_is_refused_as_an_option(path: str) -> None:
    with pytest.raises(OptionError, match="path can't be used"):
        storage_of(path)


def test_a_path_of_another_hdfs_is_not_taken_for_one_of_this() -> None:
    storage = storage_of("hdfs://nn:8020/a")
    for path in ("hdfs://other:8020/a", "webhdfs://nn:8020/a", "file:///a", "a"):
        with pytest.raises(ValueError, match="hdfs"):
            storage.normalise(path)
