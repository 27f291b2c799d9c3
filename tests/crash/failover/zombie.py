"""A server that loses the container without knowing it, and comes back when another one serves.

    python -m tests.crash.failover.zombie frozen|requests|answers FOLDER

It stands still (SIGSTOP), or its requests to the store are lost, or the answers to them, until the other server has
taken over and has deleted the batches of the log that were there. Then it is continued. From then on it must
acknowledge nothing, delete nothing, and end with an error.
"""

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import Final

from tests.crash.failover.member import FENCED, Member
from tests.crash.failover.networks import Lost, StoreNetwork, enter_own_network
from tests.crash.failover.pair import Pair, damage_in_store, ended, stand_still
from tests.crash.failover.witness import Witness
from tests.support.protocol import Peer

FROZEN: Final = "frozen"
QUIET_S: Final = 2.0
PATIENCE_S: Final = 120.0
ZOMBIE_ENDS_S_MAX: Final = 30.0


async def haunt(pair: Pair, how: str) -> None:
    """Make the owner of a pair a zombie, and judge what it does.

    Raises:
        AssertionError: it does what it must not do.
    """
    zombie = await pair.owner()
    heir = pair.other(zombie)
    witness, life = await Witness.of(zombie, "zombie/witness"), len(zombie.ends)
    zombie.hold()  # in its next life it would use the store
    await _lose(pair, zombie, how)
    await witness.send(is_late=how == FROZEN)
    batches = pair.batches()
    assert batches, "there is nothing to delete"
    await pair.owner(other_than=zombie)
    await _write_until_deleted(pair, heir, batches)
    await witness.send(is_late=True)
    before = await _quiet(pair)
    await _find(pair, zombie, how)
    code = await ended(zombie, life, within_s=ZOMBIE_ENDS_S_MAX)
    assert code == 1, f"a zombie ended with {code}"
    assert any(each in zombie.ends[life].said for each in FENCED), zombie.ends[life].said
    assert not before - pair.objects(), f"a zombie deleted {before - pair.objects()}"
    missing = await witness.check(heir)
    assert missing, "everything was acknowledged"
    pair.check()


async def _lose(pair: Pair, zombie: Member, how: str) -> None:
    if how == FROZEN:
        await stand_still(zombie)
    else:
        assert pair.network is not None
        pair.network.lose(pair.members.index(zombie), Lost(how))


async def _find(pair: Pair, zombie: Member, how: str) -> None:
    if how == FROZEN:
        zombie.signal(signal.SIGCONT)
    else:
        assert pair.network is not None
        pair.network.mend(pair.members.index(zombie), Lost(how))


async def _write_until_deleted(pair: Pair, owner: Member, batches: set[str]) -> None:
    """Write until these batches were deleted: a copy of the checkpoint that is newer makes them garbage."""
    async with asyncio.timeout(PATIENCE_S), await Peer.connect(owner.address) as peer:
        segment_id = await peer.create_segment("zombie/heir")
        while batches & pair.batches():
            await peer.store(segment_id, bytes(100))


async def _quiet(pair: Pair) -> set[str]:
    """Wait until no object comes or goes; return the keys of all."""
    async with asyncio.timeout(PATIENCE_S):
        objects, since_s = pair.objects(), time.monotonic()
        while time.monotonic() - since_s < QUIET_S:
            await asyncio.sleep(QUIET_S / 20)
            if (found := pair.objects()) != objects:
                objects, since_s = found, time.monotonic()
    return objects


async def _run(how: str, folder: Path) -> None:
    pair = Pair(folder, network=None if how == FROZEN else StoreNetwork(count=2))
    try:
        await asyncio.to_thread(pair.start)
        await haunt(pair, how)
        assert await asyncio.to_thread(pair.stop) == 0
    finally:
        pair.kill()
    damage = damage_in_store(folder)
    assert not damage, damage


def main() -> int:
    """Run from the command line."""
    enter_own_network("tests.crash.failover.zombie")
    how, folder = sys.argv[1:]
    asyncio.run(_run(how, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
