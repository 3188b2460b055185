"""A schema of a Postgres database as a text of SQL statements, and the way back."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import psycopg

from tests.postgres_server import TestServer

SCHEMA = "history"
"""What the schema is called in the text."""

_MACHINERY = re.compile(r"^(--|\\|SET |SELECT pg_catalog\.set_config)")


def dumped(server: TestServer, schema: str) -> str:
    """The tables of a schema and all their rows."""
    command = [str(server.programs / "pg_dump"), "--inserts", "--no-owner", "--no-privileges", f"--schema={schema}"]
    done = subprocess.run([*command, server.dsn], capture_output=True, text=True, check=True)
    lines = (line for line in done.stdout.splitlines() if line and not _MACHINERY.match(line))
    return "\n".join(lines).replace(schema, SCHEMA) + "\n"


def load(connection: psycopg.Connection[Any], text: str, schema: str) -> None:
    """Make the schema that a text describes, under another name."""
    # Names of schemas are all that the text has of this shape; what people wrote is in string constants.
    statements = re.sub(rf"\b{SCHEMA}\.", f"{schema}.", text).replace(f"SCHEMA {SCHEMA};", f"SCHEMA {schema};")
    connection.execute(statements.encode())
