"""PostgreSQL: what sinks and sources share. Without psycopg, importing any of it says what to install."""

from twophase.extras import require

require("psycopg", "postgres")
