# SPDX-License-Identifier: Apache-2.0
"""Do all ranks have the same plugins? One text for each rank, its hash, and the difference in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hp_core.plugins.info import PluginInfo
from hp_core.plugins.settings_from_environment import PluginSettings


def write_manifest(infos: Iterable[PluginInfo], settings: PluginSettings) -> str:
    """Return what must be equal on all ranks: a line for each plugin and each preference, sorted."""
    plugins = [f"{info.distribution} {info.version} {info.name}={info.value} {info.state}" for info in infos]
    preferences = [f"HP_PREFER {kind}:{name}={value}" for (kind, name), value in (settings.prefer or {}).items()]
    return "\n".join(sorted(plugins) + sorted(preferences))


def hash_manifest(manifest: str) -> str:
    """Return the SHA-256 of a manifest as 64 hex digits."""
    import hashlib  # brings OpenSSL: only jobs of several ranks compare

    return hashlib.sha256(manifest.encode()).hexdigest()


def describe_difference(manifests: Mapping[int, str]) -> str:
    """Say in one line which ranks have other plugins than most, or return an empty string.

    Args:
        manifests: `manifest` of each rank. The most frequent one counts as right; in a draw, that of the
            lowest rank.
    """
    ranks_by_text: dict[str, list[int]] = {}
    for rank in sorted(manifests):
        ranks_by_text.setdefault(manifests[rank], []).append(rank)
    if len(ranks_by_text) < 2:
        return ""
    usual = max(ranks_by_text, key=lambda text: len(ranks_by_text[text]))
    expected = usual.splitlines()
    parts = []
    for text, ranks in ranks_by_text.items():
        if text == usual:
            continue
        lines = text.splitlines()
        words = [f"lacks '{line}'" for line in expected if line not in lines]
        words += [f"has '{line}'" for line in lines if line not in expected]
        parts.append(f"{_ranks(ranks)} {' and '.join(words)}")
    return (
        f"plugins differ between ranks: against {_ranks(ranks_by_text[usual])}, {'; '.join(parts)}."
        " Install the same versions on every node and set the same HP_PLUGINS* and HP_PREFER (see: hp plugins list)"
    )


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
