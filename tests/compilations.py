"""What JAX traces and compiles while something runs."""

import contextlib

import jax


EVENTS: list[str] = []
jax.monitoring.register_event_duration_secs_listener(lambda event, _, **__: EVENTS.append(event))


@contextlib.contextmanager
def nothing_compiles():
    before = len(EVENTS)
    yield
    assert not [event for event in EVENTS[before:] if event.startswith("/jax/core/compile")]
