"""One real ZooKeeper per test module, and sessions on a chroot of their own."""

from tests.zk.conftest import OpenSession as OpenSession
from tests.zk.conftest import chroot as chroot
from tests.zk.conftest import server as server
from tests.zk.conftest import sessions as sessions
