"""Who may change a container: its epoch, the copy of its checkpoint that counts, and everything that is deleted."""

from .claim import claim_container as claim_container
from .folder_claim import FolderClaim as FolderClaim
from .folder_claim import read_folder_claim as read_folder_claim
from .folder_claim import write_folder_claim as write_folder_claim
from .lease import WORKERS_PREFIX as WORKERS_PREFIX
from .lease import Lease as Lease
from .lease import LeaseStatistics as LeaseStatistics
from .lease import WorkerLease as WorkerLease
from .lease import decode_lease as decode_lease
from .lease import lease_key as lease_key
from .lease import read_acknowledged as read_acknowledged
from .manifest import Claimant as Claimant
from .manifest import Manifest as Manifest
from .manifest import decode_manifest as decode_manifest
from .manifest import manifest_key as manifest_key
from .manifest_ownership import FoundManifest as FoundManifest
from .manifest_ownership import ManifestOwnership as ManifestOwnership
from .manifest_ownership import read_manifest as read_manifest
from .others import other_leases as other_leases
from .ownership import CopyRecord as CopyRecord
from .ownership import FolderOwnership as FolderOwnership
from .ownership import Ownership as Ownership
from .ownership import OwnershipStatistics as OwnershipStatistics
from .ownership import RemoteLog as RemoteLog
from .worker import Worker as Worker
