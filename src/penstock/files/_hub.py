"""Addresses on the Hugging Face Hub: branches become commits."""

from dataclasses import replace
from typing import Any, Final

from penstock.base._arguments import needs
from penstock.dataset import Dataset
from penstock.files._remote import file_system, insist, is_pinned
from penstock.files._store import StorageOptions

LOGIN: Final = " If it is private or gated, give a token: `hf auth login`, HF_TOKEN, or storage_options={'token': ...}."


def pinned(verb: str, url: str, storage_options: Any) -> str:
    """Returns an address `hf://` with the commit that its branch has now; other addresses as they are.

    Raises:
        ModuleNotFoundError: `huggingface_hub` is missing.
        SourceError: There is no such repository or branch, or it is private.
    """
    if not url.startswith("hf://") or is_pinned(url):
        return url
    options = StorageOptions.of(verb, storage_options)
    with needs(verb, "huggingface_hub", "fsspec"):
        from huggingface_hub import HfApi

    def ask() -> str:
        system, inner = file_system(url, options)
        system.invalidate_cache(inner)  # what was missing may be there after a login
        place = system.resolve_path(inner)
        api = HfApi(system.endpoint, token=system.token)
        commit = api.repo_info(place.repo_id, repo_type=place.repo_type, revision=place.revision).sha
        return f"hf://{place.repo_type}s/{place.repo_id}@{commit}/{place.path_in_repo}".rstrip("/")

    return insist(ask, lambda: f"{url} cannot be found", LOGIN)


def at_commit(dataset: Dataset, url: str) -> Dataset:
    """Returns a source whose states hold for the commit in an address alone."""
    node: Any = dataset._node
    return Dataset(replace(node, revision=url.partition("@")[2][:40])) if is_pinned(url) else dataset
