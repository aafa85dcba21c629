"""Backfills for Flask apps: run date-driven jobs again over past dates, atomically, in the app's own database."""

from .dags import Dag, Run
from .errors import BackfillError
from .extension import FlaskBackfill

__all__ = ["BackfillError", "Dag", "FlaskBackfill", "Run"]
