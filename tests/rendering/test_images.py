"""Which images clusters run: the tested ones by their digest, from a mirror, or others."""

from __future__ import annotations

import pytest

from modelplane_operator.clusters.stack.digests import DIGESTS
from modelplane_operator.images import PICKER, REFERENCE, SIDECAR, Images
from modelplane_operator.settings import Settings, SettingsError

DIGEST = f"sha256:{'0f' * 32}"
OTHER = f"registry.example:5000/team/picker@{DIGEST}"


def test_the_tested_images_are_fetched_by_their_digest() -> None:
    assert Images().of_picker() == f"{PICKER}@{DIGESTS[PICKER]}"
    assert Images().of_sidecar(1) == f"{SIDECAR}@{DIGESTS[SIDECAR]}"
    assert all(REFERENCE.fullmatch(f"{image}@{DIGESTS[image]}") for image in (PICKER, SIDECAR))


def test_replicas_of_before_keep_their_pods() -> None:
    assert Images().of_sidecar(0) == SIDECAR


def test_a_mirror_has_them_under_their_paths_and_by_the_same_digest() -> None:
    images = Settings.read({"image_registry": "mirror.example:5000/llm"}, {}).images

    path = PICKER.removeprefix("ghcr.io/")
    assert images.of_picker() == f"mirror.example:5000/llm/{path}@{DIGESTS[PICKER]}"


def test_others_are_taken_as_they_are_said() -> None:
    images = Settings.read({"picker_image": OTHER, "image_registry": "mirror.example"}, {}).images

    assert images.of_picker() == OTHER
    assert images.of_sidecar(0) == SIDECAR.replace("ghcr.io", "mirror.example")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("picker_image", "picker"),
        ("picker_image", "registry.example/Picker:v1"),
        ("picker_image", "registry.example/picker@sha256:0f"),
        ("picker_image", "https://registry.example/picker:v1"),
        ("sidecar_image", f"registry.example/picker:v1@{DIGEST} "),
        ("image_registry", "https://registry.example"),
        ("image_registry", "registry.example/"),
    ],
)
def test_what_is_no_image_is_refused(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match="it must be"):
        Settings.read({name: text}, {})
