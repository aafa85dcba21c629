"""A small host app on real observations: ``flask --app flask_backfill.demo run``.

It has the weather of Seattle by day (2012 to 2015) and of San Francisco by hour (2010) in tables of its own, and
three DAGs that compute others from them. Its SQLite file lies in the instance folder and is made on first start.
"""

from __future__ import annotations

import csv
from datetime import UTC, date, datetime, timedelta
from importlib import resources
from typing import Any

import click
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from . import FlaskBackfill, Run

ZONE = "America/Los_Angeles"

db = SQLAlchemy()
backfill = FlaskBackfill(db, allow_anonymous=True)

# -- what the app has

seattle_weather = db.Table(
    "seattle_weather",
    sa.Column("date", sa.Date, primary_key=True),
    sa.Column("precipitation", sa.Float, nullable=False, comment="mm"),
    sa.Column("temp_max", sa.Float, nullable=False, comment="degrees Celsius"),
    sa.Column("temp_min", sa.Float, nullable=False, comment="degrees Celsius"),
)
sf_temps = db.Table(
    "sf_temps",
    sa.Column("hour", sa.DateTime, primary_key=True, comment="local time"),
    sa.Column("temp", sa.Float, nullable=False, comment="degrees Fahrenheit"),
)

# -- what its jobs compute

daily_climates = db.Table(
    "daily_climates",
    sa.Column("date", sa.Date, primary_key=True),
    sa.Column("temp_mean", sa.Float, nullable=False, comment="degrees Celsius"),
    sa.Column("temp_range", sa.Float, nullable=False, comment="kelvins"),
    sa.Column("precipitation_of_7_days", sa.Float, nullable=False, comment="mm"),
)
hourly_temps_celsius = db.Table(
    "hourly_temps_celsius",
    sa.Column("hour", sa.DateTime, primary_key=True, comment="UTC"),
    sa.Column("temp", sa.Float, nullable=False, comment="degrees Celsius"),
)
monthly_reports = db.Table(
    "monthly_reports",
    sa.Column("month", sa.Date, primary_key=True),
    sa.Column("precipitation", sa.Float, nullable=False, comment="mm"),
    sa.Column("of_mean", sa.Float, comment="share of the mean of this month in all years"),
    sa.Column("text", sa.String(200)),
)


@backfill.dag(schedule="@daily", timezone=ZONE, start_date="2012-01-01", end_date="2015-12-31", display_name="Climate")
def daily_climate(run: Run) -> None:
    """Compute a day's mean and range of temperature, and the rain of the week that it ends."""
    today = run.data_interval_start.date()
    week = seattle_weather.c.date.between(today - timedelta(days=6), today)
    rain = db.session.scalar(sa.select(sa.func.sum(seattle_weather.c.precipitation)).where(week))
    observed = db.session.execute(sa.select(seattle_weather).where(seattle_weather.c.date == today)).one()
    _replace(
        daily_climates,
        date=today,
        temp_mean=(observed.temp_max + observed.temp_min) / 2,
        temp_range=observed.temp_max - observed.temp_min,
        precipitation_of_7_days=rain,
    )


@backfill.dag(schedule="@hourly", timezone=ZONE, start_date="2010-01-01", end_date="2010-12-31", display_name="Hours")
def hourly_temps(run: Run) -> None:
    """Convert an hour's temperature. The observations have local time: of a doubled hour there is one."""
    local = run.data_interval_start.replace(tzinfo=None)
    # The file calls the first hour of daylight saving time 02:00, which is skipped, and not 03:00.
    observed = sa.select(sf_temps.c.temp).where(sf_temps.c.hour.between(local - timedelta(hours=1), local))
    fahrenheit = db.session.scalars(observed.order_by(sf_temps.c.hour.desc()).limit(1)).one()
    hour = run.data_interval_start.astimezone(UTC).replace(tzinfo=None)
    _replace(hourly_temps_celsius, hour=hour, temp=(fahrenheit - 32) / 1.8)


monthly_report = backfill.dag(
    "monthly_report",
    schedule="@monthly",
    timezone=ZONE,
    start_date="2012-01-01",
    end_date="2015-12-31",
    display_name="Rain of the month",
)


@monthly_report.task
def collect(run: Run) -> None:
    """Add up the rain of the month."""
    first, end = run.data_interval_start.date(), run.data_interval_end.date()
    in_month = (seattle_weather.c.date >= first) & (seattle_weather.c.date < end)
    rain = db.session.scalar(sa.select(sa.func.sum(seattle_weather.c.precipitation)).where(in_month))
    _replace(monthly_reports, month=first, precipitation=rain)


@monthly_report.task(after=[collect])
def compare(run: Run) -> None:
    """Compare it with the mean of the same month in all years."""
    month = run.data_interval_start.date()
    same_month = sa.extract("month", seattle_weather.c.date) == month.month
    years = sa.func.count(sa.distinct(sa.extract("year", seattle_weather.c.date)))
    mean = sa.select(sa.func.sum(seattle_weather.c.precipitation) / years).where(same_month).scalar_subquery()
    _change_report(month, of_mean=monthly_reports.c.precipitation / mean)


@monthly_report.task(after=[compare])
def publish(run: Run) -> None:
    """Write the sentence."""
    month = run.data_interval_start.date()
    report = db.session.execute(sa.select(monthly_reports).where(monthly_reports.c.month == month)).one()
    text = f"{month:%B %Y}: {report.precipitation:.1f} mm of rain, {report.of_mean:.0%} of the mean."
    _change_report(month, text=text)


def _replace(table: sa.Table, **row: Any) -> None:
    """Write a row, in place of one with its key, and commit: doing it twice is doing it once."""
    (key,) = table.primary_key
    db.session.execute(sa.delete(table).where(key == row[key.name]))
    db.session.execute(sa.insert(table).values(**row))
    db.session.commit()


def _change_report(month: date, **values: Any) -> None:
    db.session.execute(sa.update(monthly_reports).where(monthly_reports.c.month == month).values(**values))
    db.session.commit()


# -- the app


def create_app() -> Flask:
    """Make the app; settings come from the environment as ``FLASK_...``."""
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite:///demo.db"
    app.config.from_prefixed_env()
    db.init_app(app)
    backfill.init_app(app)
    with app.app_context():
        _create_tables()
    _greet()
    return app


def _create_tables() -> None:
    """Create the tables and load the observations in one transaction, unless another process has done it."""
    if _has_tables(db.engine):
        return
    with db.engine.connect() as connection:
        if db.engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        if not _has_tables(connection):
            db.metadata.create_all(connection)
            connection.execute(sa.insert(seattle_weather), _seattle_rows())
            connection.execute(sa.insert(sf_temps), _sf_rows())
        connection.commit()


def _has_tables(bind: sa.Engine | sa.Connection) -> bool:
    return sa.inspect(bind).has_table(seattle_weather.name)


def _seattle_rows() -> list[dict[str, Any]]:
    return [
        {
            "date": datetime.strptime(row["date"], "%Y/%m/%d").date(),  # noqa: DTZ007 - a local date
            "precipitation": float(row["precipitation"]),
            "temp_max": float(row["temp_max"]),
            "temp_min": float(row["temp_min"]),
        }
        for row in _read("seattle-weather.csv")
    ]


def _sf_rows() -> list[dict[str, Any]]:
    return [
        {"hour": datetime.strptime(row["date"], "%Y/%m/%d %H:%M:%S"), "temp": float(row["temp"])}  # noqa: DTZ007 - as above
        for row in _read("sf-temps.csv")
    ]


def _read(name: str) -> list[dict[str, str]]:
    text = (resources.files(__package__) / "data" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _greet() -> None:
    """Print what to try, where ``flask run`` starts the app."""
    context = click.get_current_context(silent=True)
    if context is None or context.info_name != "run":
        return
    url = f"http://{context.params['host']}:{context.params['port']}/api/v2/backfills"
    body = '{"dag_id": "daily_climate", "from_date": "2015-03-01", "to_date": "2015-04-01"}'
    post = f"curl -H 'Content-Type: application/json' -d '{body}' {url}"
    click.echo(f"Preview a backfill, create it, and see what became of it:\n\n{post}/dry_run\n{post}\ncurl {url}/1\n")
