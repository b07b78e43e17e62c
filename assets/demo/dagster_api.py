"""The part of Dagster's GraphQL that the demo and its tests need: launch a flood, launch a backfill, read their results.

On a starved machine each answer can be late or an error of Dagster about its own time-outs. Questions are asked again until
`patience_s` is over. A launch is asked again only after Dagster was asked for the run that the first request may have started.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError

TIMEOUT_S = 300
"""Time-out of a request in seconds, longer than Dagster's own wait for its code server (`play.environment`)."""
AGAIN_S = 1.0
"""Pause in seconds before a question is asked again."""
LAUNCH_TAG = "headgate/launch"
"""Tag of a run with the id of its launch."""
LATE = ("deadline exceeded", "usercodeunreachable", "timed out", "database is locked", "could not reach", "connection refused")
"""Words, in lower case, of Dagster's errors that pass when the machine has more time."""
_T = TypeVar("_T")
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
_LAUNCHED = """
query Launched($id: String!) {
  runsOrError(filter: {tags: [{key: "headgate/launch", value: $id}]}) { ... on Runs { results { runId } } }
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
_LOCATIONS = """{ workspaceOrError { ... on Workspace { locationEntries {
  name loadStatus locationOrLoadError { __typename ... on PythonError { message } }
} } } }"""
_RELOAD = """mutation Reload($name: String!) { reloadRepositoryLocation(repositoryLocationName: $name) { __typename } }"""


class DagsterApi:
    """One webserver. Methods raise RetryError when it does not answer within the patience, InvalidError when it refuses.

    Args:
        url: ``http://host:port``.
        patience_s: time in which an unanswered question is asked again, in seconds.
        check: called before a question is asked again; raises when Dagster has ended.
    """

    def __init__(self, url: str, patience_s: float = 0.0, check: Callable[[], None] = lambda: None) -> None:
        self.url = url
        self._patience_s = patience_s
        self._check = check

    def serves(self) -> bool:
        """True when the page answers; its code location may still be loading."""
        try:
            with urllib.request.urlopen(f"{self.url}/server_info", timeout=TIMEOUT_S):
                return True
        except OSError:
            return False

    def ready(self) -> bool:
        """True when the code location is loaded. One that took too long to load is loaded again. Raises InvalidError for another
        error of the location."""
        try:
            entries = self._once(_LOCATIONS, {})["workspaceOrError"].get("locationEntries", ())
        except RetryError:
            return False
        entry = next((entry for entry in entries if entry["name"] == LOCATION), None)
        if entry is None or entry["loadStatus"] != "LOADED":
            return False
        loaded = entry["locationOrLoadError"] or {}
        if loaded.get("__typename") != "PythonError":
            return True
        error = _error("the code location does not load", str(loaded.get("message")))
        if isinstance(error, InvalidError):
            raise error
        with contextlib.suppress(RetryError):
            self._once(_RELOAD, {"name": LOCATION})
        return False

    def launch(self, flood: str, first: str, last: str, tags: Mapping[str, str] | None = None) -> str:
        """Run a flood for a range of partitions. Returns the run's id."""
        launch_id = uuid.uuid4().hex
        wanted = {
            "dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last, LAUNCH_TAG: launch_id,
            **(tags or {}),
        }  # fmt: skip
        params = {
            "selector": {
                "jobName": f"{flood}_flood", "repositoryName": REPOSITORY, "repositoryLocationName": LOCATION,
                "assetSelection": [{"path": [flood]}],
            },
            "mode": "default",
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in wanted.items()]},
        }  # fmt: skip

        def once() -> str:
            answer = self._once(_LAUNCH, {"params": params})["launchRun"]
            if answer["__typename"] != "LaunchRunSuccess":
                raise _error("dagster does not launch the flood", json.dumps(answer))
            return str(answer["run"]["runId"])

        def launched() -> str | None:
            runs = self._ask(_LAUNCHED, {"id": launch_id})["runsOrError"].get("results", ())
            return str(runs[0]["runId"]) if runs else None

        return self._patiently(once, launched)

    def backfill(self, flood: str, partitions: Sequence[str], job: bool = False) -> str:
        """Launch a backfill of a flood's topic, or of its job, as the UI does. Returns its id."""
        of_job = {
            "partitionSetName": f"{flood}_flood_partition_set",
            "repositorySelector": {"repositoryName": REPOSITORY, "repositoryLocationName": LOCATION},
        }
        what = {"selector": of_job} if job else {"assetSelection": [{"path": [flood]}]}
        params = {**what, "partitionNames": list(partitions), "fromFailure": False}
        answer = self._once(_BACKFILL, {"params": params})["launchPartitionBackfill"]
        if answer["__typename"] != "LaunchBackfillSuccess":
            raise InvalidError(Reason.INVALID_REQUEST, f"dagster does not launch the backfill: {json.dumps(answer)}")
        return str(answer["backfillId"])

    def run_status(self, run_id: str) -> str:
        """The run's status, such as ``STARTED`` or ``SUCCESS``."""
        return str(self._ask(_RUN, {"id": run_id})["runOrError"].get("status", "UNKNOWN"))

    def backfill_status(self, backfill_id: str) -> tuple[str, dict[str, str]]:
        """The backfill's status, and the status of its runs by id."""
        found = self._ask(_BACKFILL_STATUS, {"id": backfill_id})["partitionBackfillOrError"]
        return str(found.get("status", "UNKNOWN")), {run["id"]: run["status"] for run in found.get("runs", ())}

    def metadata(self, flood: str, run_id: str) -> dict[str, dict[str, Any]]:
        """The metadata of a flood's topic in a run, by partition."""
        found = self._ask(_MATERIALIZATIONS, {"key": {"path": [flood]}})["assetOrError"]
        return {
            materialization["partition"] or "": {entry["label"]: _value(entry) for entry in materialization["metadataEntries"]}
            for materialization in found.get("assetMaterializations", ())
            if materialization["runId"] == run_id
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
        return {evaluation["checkName"]: bool(evaluation["success"]) for evaluation in found}

    def _ask(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a question that changes nothing."""
        return self._patiently(lambda: self._once(query, variables), lambda: None)

    def _patiently(self, work: Callable[[], _T], already: Callable[[], _T | None]) -> _T:
        """Do some work, again after a RetryError until the patience is over. `already`: the result of an attempt whose answer got
        lost, or None."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return work()
            except RetryError:
                if time.monotonic() > deadline:
                    raise
            self._check()
            time.sleep(AGAIN_S)
            found = already()
            if found is not None:
                return found

    def _once(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                answer = json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")[:500]
            if error.code >= 500:
                raise RetryError(Reason.NOT_READY, f"dagster answers with an error: {text}. status=`{error.code}`") from error
            raise InvalidError(Reason.INVALID_REQUEST, f"dagster refuses: {text}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise RetryError(Reason.NOT_READY, f"dagster does not answer: {error}. url=`{self.url}`") from error
        if answer.get("errors"):
            raise _error("dagster refuses", json.dumps(answer["errors"])[:500])
        data: dict[str, Any] = answer["data"]
        return data


def _error(what: str, text: str) -> HeadgateError:
    """A RetryError for an error of Dagster that passes, an InvalidError for any other."""
    if any(word in text.lower() for word in LATE):
        return RetryError(Reason.NOT_READY, f"{what}: {text}")
    return InvalidError(Reason.INVALID_REQUEST, f"{what}: {text}")


def _value(entry: Mapping[str, Any]) -> Any:
    for name in ("intValue", "floatValue", "text", "boolValue", "jsonString"):
        if entry.get(name) is not None:
            return entry[name]
    return None
