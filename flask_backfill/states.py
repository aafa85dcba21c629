"""The words of the wire format and of the tables (Apache Airflow's)."""

from __future__ import annotations

from enum import StrEnum


class BackfillState(StrEnum):
    """State of a backfill; the first two are active."""

    QUEUED = "queued"  # no run has started
    RUNNING = "running"
    SUCCESS = "success"  # ended, no run failed
    FAILED = "failed"  # ended, a run failed
    CANCELLED = "cancelled"


class RunState(StrEnum):
    """State of a dag run and of a task instance; the first two are in flight."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"  # it never ran


IN_FLIGHT = frozenset({RunState.QUEUED, RunState.RUNNING})


class DateState(StrEnum):
    """What became of one date of a backfill: its run's state, or why the run is not this backfill's."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"  # the plan left the existing run alone
    SUPERSEDED = "superseded"  # somebody else has since redone the run


class ReprocessBehavior(StrEnum):
    """Which existing runs a backfill redoes."""

    NONE = "none"  # only what is missing
    FAILED = "failed"
    COMPLETED = "completed"  # failed and successful ones


class OnFailure(StrEnum):
    """What a failed run does to the rest of its backfill."""

    CONTINUE = "continue"
    STOP = "stop"  # the queued runs become cancelled


class SkipReason(StrEnum):
    """Why a date of the range gets no run (the names of Airflow's ``exception_reason``)."""

    ALREADY_EXISTS = "already exists"
    IN_FLIGHT = "in flight"
