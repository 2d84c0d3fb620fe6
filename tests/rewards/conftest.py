"""Hypothesis judges what graders say, not how busy the machine is; time has tests of its own."""

from hypothesis import settings

settings.register_profile("graders", deadline=None)
settings.load_profile("graders")
