"""The part of Dagster's GraphQL that the demo and its tests need: launch a flood, launch a backfill, read their results."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from headgate.broker.runtime.errors import InvalidError, Reason, RetryError

TIMEOUT_S = 120
"""Time-out of a request in seconds, longer than Dagster's own wait for its code server."""
LOCATION = "headgate"
REPOSITORY = "__repository__"

_LAUNCH = """
mutation Launch($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on InvalidSubsetError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}"""
_BACKFILL = """
mutation Backfill($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}"""
_RUN = """query Run($id: ID!) { runOrError(runId: $id) { __typename ... on Run { status } } }"""
_BACKFILL_STATUS = """
query Backfill($id: String!) {
  partitionBackfillOrError(backfillId: $id) { __typename ... on PartitionBackfill { status runs(limit: 100) { id status } } }
}"""
_MATERIALIZATIONS = """
query Seen($key: AssetKeyInput!) {
  assetOrError(assetKey: $key) { ... on Asset { assetMaterializations(limit: 50) {
    runId partition metadataEntries { label ... on IntMetadataEntry { intValue } ... on FloatMetadataEntry { floatValue }
      ... on TextMetadataEntry { text } ... on BoolMetadataEntry { boolValue } ... on JsonMetadataEntry { jsonString } }
  } } }
}"""
_LOGS = """
query Logs($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {
  __typename ... on MessageEvent { message stepKey timestamp }
  ... on ExecutionStepFailureEvent { error { message } }
  ... on AssetCheckEvaluationEvent { evaluation { checkName success description } }
} } } }"""
_LOCATIONS = """{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } } }"""


class DagsterApi:
    """One webserver. Methods raise RetryError when it does not answer, InvalidError when it refuses.

    Args:
        url: ``http://host:port``.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def ready(self) -> bool:
        """True when the code location is loaded."""
        try:
            found = self._ask(_LOCATIONS, {})["repositoriesOrError"]
        except RetryError:
            return False
        return any(one["location"]["name"] == LOCATION for one in found.get("nodes", ()))

    def launch(self, flood: str, first: str, last: str, tags: Mapping[str, str] | None = None) -> str:
        """Run a flood for a range of partitions. Returns the run's id."""
        wanted = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last, **(tags or {})}
        params = {
            "selector": {
                "jobName": f"{flood}_flood", "repositoryName": REPOSITORY, "repositoryLocationName": LOCATION,
                "assetSelection": [{"path": [flood, name]} for name in ASSETS],
            },
            "mode": "default",
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in wanted.items()]},
        }  # fmt: skip
        answer = self._ask(_LAUNCH, {"params": params})["launchRun"]
        if answer["__typename"] != "LaunchRunSuccess":
            raise InvalidError(Reason.INVALID_REQUEST, f"dagster does not launch the flood: {json.dumps(answer)}")
        return str(answer["run"]["runId"])

    def backfill(self, flood: str, partitions: Sequence[str]) -> str:
        """Launch a backfill of all assets of a flood, as the UI does. Returns its id."""
        params = {
            "assetSelection": [{"path": [flood, name]} for name in ASSETS],
            "partitionNames": list(partitions),
            "fromFailure": False,
        }
        answer = self._ask(_BACKFILL, {"params": params})["launchPartitionBackfill"]
        if answer["__typename"] != "LaunchBackfillSuccess":
            raise InvalidError(Reason.INVALID_REQUEST, f"dagster does not launch the backfill: {json.dumps(answer)}")
        return str(answer["backfillId"])

    def run_status(self, run_id: str) -> str:
        """The run's status, such as ``STARTED`` or ``SUCCESS``."""
        return str(self._ask(_RUN, {"id": run_id})["runOrError"].get("status", "UNKNOWN"))

    def backfill_status(self, backfill_id: str) -> tuple[str, dict[str, str]]:
        """The backfill's status, and the status of its runs by id."""
        found = self._ask(_BACKFILL_STATUS, {"id": backfill_id})["partitionBackfillOrError"]
        return str(found.get("status", "UNKNOWN")), {one["id"]: one["status"] for one in found.get("runs", ())}

    def metadata(self, flood: str, asset: str, run_id: str) -> dict[str, dict[str, Any]]:
        """An asset's metadata in a run, by partition."""
        found = self._ask(_MATERIALIZATIONS, {"key": {"path": [flood, asset]}})["assetOrError"]
        return {
            one["partition"] or "": {entry["label"]: _value(entry) for entry in one["metadataEntries"]}
            for one in found.get("assetMaterializations", ())
            if one["runId"] == run_id
        }

    def events(self, run_id: str) -> list[dict[str, Any]]:
        """The events of a run, in order."""
        return list(self._ask(_LOGS, {"id": run_id})["logsForRun"].get("events", ()))

    def failure(self, run_id: str) -> str:
        """The reason of a run's failure: the first error in its log."""
        for event in self.events(run_id):
            if event["__typename"] == "ExecutionStepFailureEvent":
                return str((event.get("error") or {}).get("message") or event.get("message"))
        return "the run's page says more"

    def checks(self, run_id: str) -> dict[str, bool]:
        """The asset checks of a run, each with True when it passed."""
        found = (event["evaluation"] for event in self.events(run_id) if event["__typename"] == "AssetCheckEvaluationEvent")
        return {one["checkName"]: bool(one["success"]) for one in found}

    def _ask(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                answer = json.loads(response.read())
        except urllib.error.HTTPError as error:
            raise InvalidError(Reason.INVALID_REQUEST, f"dagster refuses: {error.read().decode(errors='replace')[:500]}") from error
        except (OSError, ValueError) as error:
            raise RetryError(Reason.NOT_READY, f"dagster does not answer: {error}. url=`{self.url}`") from error
        if answer.get("errors"):
            raise InvalidError(Reason.INVALID_REQUEST, f"dagster refuses: {json.dumps(answer['errors'])[:500]}")
        data: dict[str, Any] = answer["data"]
        return data


ASSETS = ("flood_plan", "flood_capacity", "flood_backfill", "flood_release")


def _value(entry: Mapping[str, Any]) -> Any:
    for name in ("intValue", "floatValue", "text", "boolValue", "jsonString"):
        if entry.get(name) is not None:
            return entry[name]
    return None
