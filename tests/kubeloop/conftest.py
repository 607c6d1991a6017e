"""Tests of kubeloop speak HTTP/2 to servers that do, unless a test says otherwise."""

from tests.support.api_fixtures import protocol  # noqa: F401 - a fixture
