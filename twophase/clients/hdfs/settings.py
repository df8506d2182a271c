"""The settings of HDFS clients: how long to wait, and as whom to speak. As options they begin with `hdfs.`

Two times, because they answer two questions. `timeoutMs` bounds one request, after which nobody knows whether it was carried
out. `patienceMs` bounds how often it is tried again when it certainly was not: a NameNode that refuses connections, is a standby,
or is in safe mode after a restart. hdfs-native has no time limit for a request of its own, and waits three minutes and more for a
NameNode that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from twophase.options import PassThrough, option, parse
from twophase.secret import Secret

PREFIX = "hdfs."


@dataclass(frozen=True, kw_only=True)
class HdfsSettings:
    """The options `hdfs.*`, without their prefix."""

    timeout_ms: int = option(
        doc="How long one request to a NameNode may take before its reply counts as lost.", default=20_000, minimum=100
    )
    data_timeout_ms: int = option(
        doc="The same for requests that carry data: a piece of a file, or by WebHDFS a whole file.",
        default=120_000,
        minimum=1_000,
    )
    patience_ms: int = option(
        doc="How long to go on trying while no NameNode takes the request (it can't be reached, starts, is a standby, or is in "
        "safe mode), or answers one that may be made twice.",
        default=60_000,
        minimum=0,
    )
    sync: bool = option(
        doc="hdfs-native: have the DataNodes write each file to their disks before it counts as written. WebHDFS can't ask for it: "
        "set `dfs.datanode.synconclose` there.",
        default=True,
    )
    user: str | None = option(
        doc="As whom to speak to a cluster without Kerberos. By default the environment's `HADOOP_USER_NAME`, else the user that "
        "the process runs as.",
        default=None,
    )
    delegation_token: Secret | None = option(
        doc="A delegation token for WebHDFS, as the NameNode gave it out. hdfs-native takes those of `HADOOP_TOKEN_FILE_LOCATION`.",
        default=None,
    )
    kerberos_principal: str | None = option(
        doc="hdfs-native: the principal, if it is not that of the environment's ticket cache.", default=None
    )
    kerberos_keytab: str | None = option(doc="hdfs-native: the file of the principal's keys.", default=None)
    kerberos_cache: str | None = option(doc="hdfs-native: the ticket cache.", default=None)
    hadoop: PassThrough = option(
        doc="Any property of Hadoop's clients that hdfs-native knows, such as `hdfs.dfs.ha.namenodes.cluster1`. They add to those "
        "of `HADOOP_CONF_DIR`.",
        prefix="",
    )

    def problems(self) -> Iterator[str]:
        for key in self.hadoop:
            if "." not in key:
                yield f"unknown option {PREFIX}{key}: it is neither one of twophase nor a property of Hadoop"
        if self.kerberos_principal is None and (self.kerberos_keytab or self.kerberos_cache):
            yield f"{PREFIX}kerberosKeytab and {PREFIX}kerberosCache need {PREFIX}kerberosPrincipal"

    @classmethod
    def of(cls, given: Mapping[str, str | Secret]) -> HdfsSettings:
        """By the texts of the options; OptionError for what is wrong with them."""
        # A reference stays one: it is looked up where it is used.
        texts = {
            key: (value.reference or value.reveal()) if isinstance(value, Secret) else value
            for key, value in given.items()
        }
        return parse(cls, texts)
