"""What befalls a server and its connections."""

import asyncio
from random import Random
from typing import Final

from tests.crash.transactions.faults import carry_out_scale, drawn_scale, scale_in_a_row

from .world import World

STALLS_S: Final = (0.1, 0.5, 1.5, 2.5)
"""How long a process stands still: shorter than every lease of a transaction, or longer than the short ones."""


async def kill(world: World, dice: Random) -> None:
    """Kill the server between two steps of its loop, and start another."""
    world.machine.kill(loses_power=False)
    await _start(world, dice)


async def lose_power(world: World, dice: Random) -> None:
    """Lose what was not synced, with the server."""
    world.machine.kill(loses_power=True)
    await _start(world, dice)


async def kill_at_disk(world: World, dice: Random) -> None:
    """Kill the server in the middle of its work on the disk, in the loop or in a thread, with the power or without."""
    killed = world.machine.kill_within(dice.choice([1, 3, 10, 30]), loses_power=dice.random() < 0.5)
    try:
        async with asyncio.timeout(1.0):
            await killed.wait()
    except TimeoutError:
        world.machine.kill(loses_power=True)
    await _start(world, dice)


async def restart(world: World, dice: Random) -> None:
    """Stop the server in good order."""
    await world.machine.stop()
    await _start(world, dice)


async def cut_connections(world: World, dice: Random) -> None:
    """Cut some connections, with what is on its way."""
    for end in list(world.loop.wires.ends):
        if dice.random() < 0.3:
            world.loop.wires.cut(end)


async def stand_still(world: World, dice: Random) -> None:
    """Stop the process of the server for a while, shorter or longer than leases of transactions."""
    life = world.machine.life
    life.is_frozen = True
    await asyncio.sleep(dice.choice(STALLS_S))
    world.loop.thaw(life, timers_first=dice.random() < 0.5)


async def stall_clients(world: World, dice: Random) -> None:
    """Stop some client processes for a while, shorter or longer than leases of transactions."""
    names = sorted(world.playing)
    chosen = dice.sample(names, dice.randint(1, len(names)))
    lives = [world.playing[name] for name in chosen]
    for life in lives:
        life.is_frozen = True
    await asyncio.sleep(dice.choice(STALLS_S))
    for name, life in zip(chosen, lives, strict=True):
        if world.playing.get(name) is life:  # it was not killed meanwhile
            world.loop.thaw(life, timers_first=dice.random() < 0.5)


async def scale_all(world: World, dice: Random) -> None:
    """Split and merge all streams at once, some times: commits wait for one scale and meet the next one."""
    async with asyncio.TaskGroup() as tasks:
        for stream in world.torture.streams:
            tasks.create_task(scale_in_a_row(world.admin, stream, dice.random(), world.counted))


async def scale_all_still(world: World, dice: Random) -> None:
    """Scale all streams while the server stands still: it finds commits before and after each scale at once."""
    scales = [await drawn_scale(world.admin, stream, dice) for stream in world.torture.streams]
    async with asyncio.TaskGroup() as tasks:
        for scale in scales:
            tasks.create_task(carry_out_scale(world.admin, scale, world.counted))
        await stand_still(world, dice)


async def fail_syncs(world: World, dice: Random) -> None:
    """Refuse some syncs of the disk; the server recovers by itself."""
    world.machine.files.fail_syncs(dice.randint(1, 2))
    await asyncio.sleep(dice.uniform(0.1, 1.0))
    world.machine.files.fail_syncs(0)


async def _start(world: World, dice: Random) -> None:
    await asyncio.sleep(dice.choice([0.0, 0.05, 0.5]))
    world.machine.start()
