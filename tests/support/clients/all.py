"""The foreign clients by name, one of each per test run."""

from __future__ import annotations

from tests.support.clients.aiokafka_client import Aiokafka
from tests.support.clients.confluent import Confluent
from tests.support.clients.interface import Client
from tests.support.clients.kafka_python import KafkaPython
from tests.support.clients.kafkajs import Kafkajs

KAFKAJS = Kafkajs()

CLIENTS: dict[str, Client] = {client.name: client for client in (Confluent(), Aiokafka(), KafkaPython(), KAFKAJS)}
