"""What befalls a server and its connections."""

import asyncio
from random import Random

from .world import World


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
    await asyncio.sleep(dice.choice([0.1, 0.5, 1.5, 2.5]))
    world.loop.thaw(life, timers_first=dice.random() < 0.5)


async def fail_syncs(world: World, dice: Random) -> None:
    """Refuse some syncs of the disk; the server recovers by itself."""
    world.machine.files.fail_syncs(dice.randint(1, 2))
    await asyncio.sleep(dice.uniform(0.1, 1.0))
    world.machine.files.fail_syncs(0)


async def _start(world: World, dice: Random) -> None:
    await asyncio.sleep(dice.choice([0.0, 0.05, 0.5]))
    world.machine.start()
