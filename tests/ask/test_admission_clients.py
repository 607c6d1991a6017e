"""Where API servers are given a certificate, whoever asks the webhook proves by one that it is such a server."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
import trustme
import yaml

from kubeloop.client.access import read_kubeconfig
from kubeloop.client.kube import connect
from kubeloop.errors import ClientError
from kubeloop.objects import Key
from kubeloop.types import VALIDATING_WEBHOOK
from localfleet.apiserver import api_server
from localfleet.network import free_ports
from modelplane_operator.api import names
from tests.support.builders import deployment, engine, request
from tests.support.chart import rendered
from tests.support.manifests import ROOT
from tests.support.processes import REAL, eventually, operating

pytestmark = pytest.mark.fleet

WRONG = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi") >= 0'
CONFIGURATION = Key("", names.ADMISSION_WEBHOOK)


def files(folder: Path, port: int) -> tuple[Path, Path]:
    """Write an authority and what API servers are told by their administrator; return both."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.crt")
    mine = authority.issue_cert("api-server.example.com")
    certificate, key = folder / "client.crt", folder / "client.key"
    certificate.write_bytes(b"".join(one.bytes() for one in mine.cert_chain_pems))
    mine.private_key_pem.write_to_path(key)
    user = {"name": f"localhost:{port}", "user": {"client-certificate": str(certificate), "client-key": str(key)}}
    kubeconfig = folder / "webhooks.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "users": [user]}))
    asks = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration"}
    plugin = {"name": "ValidatingAdmissionWebhook", "configuration": {**asks, "kubeConfigFile": str(kubeconfig)}}
    configured = folder / "admission.yaml"
    told = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [plugin]}
    configured.write_text(yaml.safe_dump(told))
    return folder / "ca.crt", configured


async def test_an_api_server_with_a_certificate_is_answered_and_a_pod_that_knows_the_path_is_not(
    tmp_path: Path,
) -> None:
    (port,) = free_ports(1)
    authority, configured = files(tmp_path, port)
    flags = (f"--admission-listen=localhost:{port}", f"--admission-clients={authority}")
    with api_server(f"--admission-control-config-file={configured}") as server:
        async with connect(read_kubeconfig(server.kubeconfig.read_text())) as kube:
            for file in sorted((ROOT / "crds").glob("*.yaml")):
                for one in yaml.safe_load_all(file.read_text()):
                    await kube.apply(one)
            await kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.SYSTEM_NAMESPACE}})
            (found,) = [one for one in await rendered() if one["kind"] == "ValidatingWebhookConfiguration"]
            hooks = [{**hook, "clientConfig": {"url": f"https://localhost:{port}/"}} for hook in found["webhooks"]]
            await kube.apply({**found, "webhooks": hooks})

            async def said() -> str:
                made = deployment(engine(request(WRONG)), name="qwen", namespace="default").to_manifest()
                try:
                    await kube.apply({**made, "metadata": {"name": "qwen", "namespace": "default"}}, dry_run=True)
                except ClientError as error:
                    return str(error)
                return ""

            with operating(server.kubeconfig, tmp_path, *flags, module=REAL):
                await eventually(said, lambda words: "the ( is never closed" in words, "the webhook to refuse")
                configuration = await kube.get(VALIDATING_WEBHOOK, CONFIGURATION)
                url = configuration["webhooks"][0]["clientConfig"]["url"]
                assert len(urlsplit(url).path) > 60
                blind = ssl.create_default_context()
                blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
                async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=blind)) as session:
                    with pytest.raises(aiohttp.ClientError):
                        async with session.post(url, data=json.dumps({})) as answer:
                            await answer.read()
