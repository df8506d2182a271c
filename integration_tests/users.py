"""Users of a broker that have to log in, with exactly the rights that a test gives them."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from twophase.testing.servers.kafka import Security

WITHIN_S = 30.0
CLUSTER = "kafka-cluster"


@dataclass(frozen=True)
class Right:
    """What a user may do with resources whose names begin so; of the cluster there is one."""

    operation: str
    resource: str
    """topic, group, transactional id or cluster."""
    prefix: str

    def binding(self, user: str) -> AclBinding:
        of_cluster = self.resource == "cluster"
        return AclBinding(
            ResourceType.BROKER if of_cluster else ResourceType[self.resource.upper().replace(" ", "_")],
            CLUSTER if of_cluster else self.prefix,
            ResourcePatternType.LITERAL if of_cluster else ResourcePatternType.PREFIXED,
            f"User:{user}",
            "*",
            AclOperation[_SPELLED.get(self.operation, self.operation.upper())],
            AclPermissionType.ALLOW,
        )


_SPELLED = {"DescribeConfigs": "DESCRIBE_CONFIGS", "IdempotentWrite": "IDEMPOTENT_WRITE"}


@dataclass(frozen=True)
class User:
    """Somebody new. `plain` is the listener where everything may be done."""

    plain: str
    security: Security
    name: str = field(default_factory=lambda: f"user-{uuid.uuid4().hex}")
    password: str = field(default_factory=lambda: f'word, "quoted" \\ {uuid.uuid4().hex}')

    def __post_init__(self) -> None:
        secret = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = UserScramCredentialUpsertion(self.name, secret, self.password.encode())
        admin = self._admin()
        for done in admin.alter_user_scram_credentials([wanted]).values():
            done.result(WITHIN_S)

    def may(self, rights: Collection[Right]) -> None:
        """From now on, besides what was granted before. (The one broker that there is has it when it answers.)"""
        if not rights:
            return
        admin = self._admin()
        for done in admin.create_acls([right.binding(self.name) for right in rights]).values():
            done.result(WITHIN_S)

    def may_no_longer(self, right: Right) -> None:
        admin = self._admin()
        for done in admin.delete_acls([_exactly(right.binding(self.name))]).values():
            assert len(done.result(WITHIN_S)) == 1, "the user did not have this right"

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.plain})

    def is_betrayed_by(self, text: str) -> bool:
        """Whether it holds the password, however it is quoted and escaped there: its last part has nothing to escape."""
        return self.password.split()[-1] in text

    def settings(self, **changed: str) -> dict[str, str]:
        """As people have them for Spark's own connector, without `kafka.`."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": self.jaas(),
            "ssl.truststore.location": str(self.security.certificate.authority),
            "ssl.truststore.type": "PEM",
            **changed,
        }

    def jaas(self, password: str | None = None) -> str:
        spelled = (password or self.password).replace("\\", "\\\\").replace('"', '\\"')
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return f'{module} required username="{self.name}" password="{spelled}";'


def _exactly(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )
