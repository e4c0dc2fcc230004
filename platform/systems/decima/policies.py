"""The reference of the systems' registry."""

from __future__ import annotations

from loadmaster.platform.systems.policies import ConventionalPolicies, Policies

POLICIES: Policies = ConventionalPolicies("decima")
