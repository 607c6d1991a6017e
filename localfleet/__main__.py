"""The `localfleet` command."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from localfleet import binaries, profiles, seed
from localfleet.cluster import kinds
from localfleet.errors import FleetError
from localfleet.fleet import Fleet, Options, default_folder, environment_inside
from localfleet.network import Direction

app = typer.Typer(
    name="localfleet",
    help="A real fleet of Kubernetes clusters on this machine: no Docker, no cloud, no GPU.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
faults = typer.Typer(help="Break something, and mend it again.", no_args_is_help=True)
app.add_typer(faults, name="fault")

Name = Annotated[str, typer.Argument(help="A cluster: hub, worker-1, worker-2, ...")]
Profile = Annotated[Path, typer.Option(help="The hardware to pretend: a YAML file.")]
Component = Annotated[str, typer.Argument(help="One of its components, as `status` lists them.")]


def fleet() -> Fleet:
    return Fleet(default_folder())


def fleet_that_is_up() -> Fleet:
    found = fleet()
    found.status()  # says how to start one when there is none
    return found


@app.command()
def up(
    workers: Annotated[int, typer.Option(min=0, max=31, help="How many workload clusters.")] = 2,
    profile: Profile = profiles.DEFAULT,
    port: Annotated[int, typer.Option(help="First of the ports on 127.0.0.1; 0 takes free ones.")] = 0,
    *,
    data_plane: Annotated[bool, typer.Option(help="Start Traefik and Envoy Gateway with the clusters.")] = True,
    fault_proxy: Annotated[bool, typer.Option(help="Put a fault proxy in front of each API server.")] = False,
    audit: Annotated[bool, typer.Option(help="Have the API servers write who asked for what.")] = False,
) -> None:
    """Start a hub and workload clusters; what is up already stays, what has died is started again."""
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:5.1f} s  {line}", file=sys.stderr, flush=True)

    fleet().up(Options(workers, profile, port, data_plane, fault_proxy, audit), say)
    say("the fleet is up")
    status()


@app.command()
def status() -> None:
    """Show every cluster: how to reach it, its memory, and what of it does not run."""
    found = fleet_that_is_up()
    clusters, memory = found.status()["clusters"], found.memory()
    for each in clusters:
        ports = each["ports"]
        print(f"{each['name']}: API 127.0.0.1:{ports['api']}, gateway 127.0.0.1:{ports['gateway']}, ", end="")
        print(f"{memory[each['name']] >> 20} MiB{', ' + each['fault'] if each['fault'] else ''}")
        print(f"  addresses: {each['address']}, load balancers {each['balancers']}")
        print(f"  kubectl --kubeconfig {each['kubeconfig']}")
        for component, state in each["components"].items():
            if state != "running":
                print(f"  {component} is {state}")
    print(f"{len(clusters)} clusters, {sum(memory.values()) >> 20} MiB")


@app.command()
def down() -> None:
    """End the fleet: every process, network and file of it."""
    print("the fleet is down" if fleet().down() else "no fleet was up")


@app.command()
def add(name: Name, profile: Profile = profiles.DEFAULT) -> None:
    """Start one more workload cluster."""
    fleet_that_is_up().add_worker(name, Options(profile=profile))


@app.command()
def remove(name: Name) -> None:
    """End one workload cluster."""
    fleet_that_is_up().remove(name)


@app.command()
def kubeconfig(name: Name) -> None:
    """Print where a cluster's kubeconfig is (the administrator's)."""
    print(fleet_that_is_up().kubeconfig(name))


@app.command(name="exec", context_settings={"ignore_unknown_options": True})
def execute(
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.")],
    cluster: Annotated[str | None, typer.Option("--in", help="Run it in this cluster's network.")] = None,
) -> None:
    """Run a command in the fleet's network, where every cluster's own addresses are reachable.

    In a cluster's, KUBECONFIG leads to that cluster: the one for use outside names addresses that are not there.
    """
    found = fleet_that_is_up()
    inside = found.inside(command, cluster)
    environment = environment_inside()
    if cluster is not None:
        environment["KUBECONFIG"] = str(found.inner_kubeconfig(cluster))
    os.execvpe(inside[0], inside, environment)  # noqa: S606 - the person's own command, as it was given


@app.command()
def logs(
    name: Name,
    component: Annotated[str | None, typer.Argument(help="A component; without it, the logs are listed.")] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it is written.")] = False,
) -> None:
    """Print the log of a component or of a pod that runs for real."""
    found = {file.stem: file for file in sorted((fleet_that_is_up().folder / "clusters" / name / "logs").glob("*.log"))}
    if component is None:
        print("\n".join(found))
    elif component not in found:
        raise FleetError(f"{name} has no log {component}; it has {', '.join(found)}")
    elif follow:
        subprocess.run(["tail", "-n", "50", "-f", found[component]], check=False)
    else:
        print(found[component].read_text(errors="replace"), end="")


@app.command()
def build(
    names: Annotated[list[str] | None, typer.Argument(help="Tools to make; all of them when none is named.")] = None,
) -> None:
    """Make the programs that a fleet runs, once, and print where each one is."""
    made = binaries.ensure(*(names or ()))
    if not names:
        made |= {f"etcd-seed-{each.folder}": seed.ensure(kinds(made, each)) for each in profiles.Gateway}
    for name, where in made.items():
        print(f"{name:24} {where}")


@app.command()
def pack(
    folder: Annotated[Path, typer.Argument(help="Where the archive goes.")] = Path("dist"),
    published: Annotated[str, typer.Option(help="The URL of the folder where a release has it.")] = "",
) -> None:
    """Write the programs into an archive for other machines of this kind, which FLEET_BINARIES names there.

    With `--published` localfleet/released.json names it, and whoever has that file needs no FLEET_BINARIES.
    """
    file, digest = binaries.pack(folder, published)
    print(f"{file}: {file.stat().st_size / 1e6:.0f} MB\nFLEET_BINARIES={file.resolve()}#{digest}")


class Credentials(Enum):
    """What to do with the kubeconfigs that were handed out."""

    EXPIRE = "expire"
    ROTATE = "rotate"


@faults.command()
def pause(name: Name, component: Component) -> None:
    """Stop a component in its tracks (SIGSTOP): it keeps its connections and says nothing."""
    fleet_that_is_up().fault(name, component, "pause")


@faults.command()
def resume(name: Name, component: Component) -> None:
    """Let a paused component go on."""
    fleet_that_is_up().fault(name, component, "resume")


@faults.command()
def kill(name: Name, component: Component) -> None:
    """Kill a component (SIGKILL); `fault restart` or `up` starts it again."""
    fleet_that_is_up().fault(name, component, "kill")


@faults.command()
def stop(name: Name, component: Component) -> None:
    """Ask a component to end, and wait until it has."""
    fleet_that_is_up().fault(name, component, "stop")


@faults.command()
def restart(name: Name, component: Component) -> None:
    """End a component if it runs, start it, and wait until it serves."""
    fleet_that_is_up().fault(name, component, "restart")


@faults.command()
def cut(
    name: Name,
    direction: Annotated[Direction, typer.Argument(help="What is lost, as the cluster sees it.")] = Direction.BOTH,
) -> None:
    """Cut a cluster off: packets vanish without a word."""
    fleet_that_is_up().cut(name, direction)


@faults.command()
def heal(name: Name) -> None:
    """Take back cuts and delays."""
    fleet_that_is_up().heal(name)


@faults.command()
def delay(name: Name, milliseconds: int) -> None:
    """Delay what goes to and from a cluster, each way."""
    found = fleet_that_is_up()
    found.delay(name, milliseconds)
    print(f"{name} is {found.cluster(name)['fault']}")


@faults.command()
def node(
    name: Name,
    node_name: str,
    *,
    mended: Annotated[bool, typer.Option("--mend", help="Let it speak again.")] = False,
) -> None:
    """Silence a node's kubelet and its engines, or let them speak again."""
    fleet_that_is_up().node(name, node_name, down=not mended)


@faults.command()
def credentials(name: Name, action: Credentials) -> None:
    """Refuse the kubeconfigs handed out so far; `rotate` writes a new one in the same place."""
    fleet_that_is_up().credentials(name, action.value)


def run() -> None:
    """Run the command; what a person can act on is printed without a traceback."""
    try:
        app()
    except FleetError as error:
        print(f"localfleet: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    run()
