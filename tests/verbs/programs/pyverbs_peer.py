"""A peer that is not ours: pyverbs of rdma-core, which speaks the wire format of
native/fabric/verbs/wire.h, and the addresses of native/fabric/striped/address.h for one rail, by
what is written there. For Debian's Python, without the project.

usage: pyverbs_peer.py FOLDER ADDRESS   (addresses are exchanged through files in FOLDER)
"""

import hmac
import json
import os
import socket
import struct
import sys
import time
from pathlib import Path

import pyverbs.enums as e
from files import publish, wait_for
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

# An address of a port: one ADDRESS and a token.
ADDRESS = struct.Struct("<QQIIIIIIHBBBB2x16s")
RECORD = struct.Struct("<II")
REGION = struct.Struct("<QQQII")
TOKEN = struct.Struct("<4sQQ?")  # of rdma_transport.fabric, in a notification
NOTIFICATION, ANNOUNCEMENT, HELLO, ACCEPT, CONNECTED = 1, 3, 5, 6, 7
ROCE_V2 = 2
RING, RECEIVES, UNIT = 1 << 16, 64, 64
LENGTH = 1 << 20
SECONDS = 60


def fields_of(address: bytes) -> list[bytes]:
    fields = []
    while address:
        (length,) = struct.unpack_from("<H", address)
        fields.append(address[2 : 2 + length])
        address = address[2 + length :]
    return fields


def address_of(*fields: bytes) -> bytes:
    return b"".join(struct.pack("<H", len(field)) + field for field in fields)


def verbs_part(address: bytes) -> bytes:
    """What an address of several fabrics holds for verbs."""
    fields = fields_of(address)
    return dict(zip(fields[::2], fields[1::2], strict=True))[b"verbs"]


class Peer:
    def __init__(self, folder: Path, address: str) -> None:
        self.context = Context(name="rxe0")
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 256, None, None, 0)
        both = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        self.ring = MR(self.pd, RING, both)
        self.mirror = MR(self.pd, RING, e.IBV_ACCESS_LOCAL_WRITE)
        self.unused = MR(self.pd, 64, e.IBV_ACCESS_LOCAL_WRITE)
        self.memory = MR(self.pd, LENGTH, both | e.IBV_ACCESS_REMOTE_READ)
        cap = QPCap(max_send_wr=RECEIVES, max_recv_wr=RECEIVES, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE
        self.qp = QP(self.pd, init, attr)
        for _ in range(RECEIVES):
            self.qp.post_recv(self.receive())
        self.head = self.tail = 0
        self.sent = 0
        self.token = os.urandom(16)
        self.psn = 4711
        self.messages: list[bytes] = []
        self.regions: dict[int, tuple[int, int, int, int]] = {}
        self.greeted = self.connected = False

        index = self.gid_index(address)
        ours = self.context.query_gid(1, index)
        ours_gid = bytes.fromhex(str(ours).replace(":", ""))
        mine = (
            ADDRESS.pack(
                *(self.ring.buf, RING, self.ring.rkey, RECEIVES, self.qp.qp_num, self.psn),
                *(e.IBV_MTU_1024, 1, 0, 1, ROCE_V2, 0, 0, ours_gid),
            )
            + self.token
        )
        striped = b"\1" + address_of(b"rxe0:1", b"", mine)  # one rail
        whole = verbs_part(wait_for(folder / "ours"))
        self.key = whole + striped + b"\1"  # the active end's first; one rail
        _, _, theirs = fields_of(whole[1:])
        self.peer_ring, _, self.peer_rkey, _, number, psn, *_, gid = ADDRESS.unpack_from(theirs)
        self.peer_token = theirs[-16:]
        attr.ah_attr = AHAttr(
            port_num=1,
            is_global=1,
            gr=GlobalRoute(
                dgid=GID(":".join(f"{gid[i]:02x}{gid[i + 1]:02x}" for i in range(0, 16, 2))),
                sgid_index=index,
            ),
        )
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = number, psn, self.psn
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        self.qp.to_rts(attr)
        publish(folder / "theirs", address_of(b"verbs", striped))

    def gid_index(self, address: str) -> int:
        """Of this IPv4 address; Soft-RoCE has RoCE v2 alone."""
        wanted = bytes(10) + b"\xff\xff" + socket.inet_aton(address)
        for index in range(4):
            if bytes.fromhex(str(self.context.query_gid(1, index)).replace(":", "")) == wanted:
                return index
        raise LookupError(f"no GID of {address}")

    def receive(self) -> RecvWR:
        """For an immediate value; pyverbs wants a buffer all the same."""
        return RecvWR(num_sge=1, sg=[SGE(self.unused.buf, 64, self.unused.lkey)])

    def take(self, wanted: int) -> None:
        """Handle completions until `wanted` send requests have ended."""
        deadline = time.monotonic() + SECONDS
        while self.sent < wanted:
            self.poll()
            assert time.monotonic() < deadline, "a send request did not end"

    def poll(self) -> None:
        count, completions = self.cq.poll(16)
        for wc in completions[:count]:
            assert wc.status == e.IBV_WC_SUCCESS, wc
            if wc.opcode & e.IBV_WC_RECV:
                self.qp.post_recv(self.receive())
                self.batch(socket.ntohl(wc.imm_data))
            else:
                self.sent += 1

    def batch(self, immediate: int) -> None:
        if immediate >> 31:
            return  # a credit; this peer never sends that much
        if immediate >> 30 & 1:
            self.head = -(-self.head // RING) * RING
        length = (immediate & 0xFFFF) * UNIT
        data = self.ring.read(length, self.head % RING)
        self.head += length
        while len(data) >= RECORD.size:
            size, kind = RECORD.unpack_from(data)
            if size == 0xFFFFFFFF:
                break
            body = data[RECORD.size : RECORD.size + size]
            data = data[RECORD.size + -(-size // 8) * 8 :]
            if kind == HELLO:
                assert body == self.greeting("hello"), "the peer does not know the tokens"
                self.post([(ACCEPT, self.greeting("accept"))])
                self.greeted = True
            elif kind == ANNOUNCEMENT:
                key, size, address, rkey, writable = REGION.unpack(body)
                self.regions[key] = (address, size, rkey, writable)
            elif kind == NOTIFICATION:
                self.messages.append(body)
            elif kind == CONNECTED:
                self.connected = self.greeted
            else:
                raise AssertionError(f"a record of kind {kind}")

    def greeting(self, word: str) -> bytes:
        """Proof that both tokens are known, without showing them: native/fabric/greeting.h."""
        tokens = self.peer_token + self.token  # the active end's first
        return hmac.digest(self.key + tokens, f"rdma_transport {word}".encode(), "sha256")

    def notify(self, body: bytes, before: tuple[tuple[int, bytes], ...] = ()) -> None:
        self.post([*before, (NOTIFICATION, body)])

    def post(self, records: list[tuple[int, bytes]]) -> None:
        """One batch of records into the other side's ring."""
        data = b"".join(
            RECORD.pack(len(body), kind) + body.ljust(-(-len(body) // 8) * 8, b"\0")
            for kind, body in records
        )
        units = -(-len(data) // UNIT)
        if len(data) < units * UNIT:
            data += struct.pack("<I", 0xFFFFFFFF)
        data = data.ljust(units * UNIT, b"\0")
        self.mirror.write(data, len(data), self.tail)
        wr = SendWR(
            opcode=e.IBV_WR_RDMA_WRITE_WITH_IMM,
            num_sge=1,
            imm_data=socket.htonl(units),
            sg=[SGE(self.mirror.buf + self.tail, len(data), self.mirror.lkey)],
            send_flags=e.IBV_SEND_SIGNALED,
        )
        wr.set_wr_rdma(self.peer_rkey, self.peer_ring + self.tail)
        self.qp.post_send(wr)
        self.tail += len(data)

    def move(self, opcode: int, remote: int, rkey: int, offset: int, length: int) -> None:
        """Between this side's memory and the same place of the other side's region."""
        wr = SendWR(
            opcode=opcode,
            num_sge=1,
            sg=[SGE(self.memory.buf + offset, length, self.memory.lkey)],
            send_flags=e.IBV_SEND_SIGNALED,
        )
        wr.set_wr_rdma(rkey, remote + offset)
        wanted = self.sent + 1
        self.qp.post_send(wr)
        self.take(wanted)

    def message(self) -> bytes:
        deadline = time.monotonic() + SECONDS
        while not self.messages:
            self.poll()
            assert time.monotonic() < deadline, "no message"
        return self.messages.pop(0)

    def exchange(self) -> None:
        token = TOKEN.pack(b"rgn1", 7, LENGTH, True)
        announcement = REGION.pack(7, LENGTH, self.memory.buf, self.memory.rkey, 1)
        while not self.greeted:
            self.poll()
        self.notify(token, before=((ANNOUNCEMENT, announcement),))
        _, key, size, _ = TOKEN.unpack(self.message())
        assert self.connected
        remote, length, rkey, writable = self.regions[key]
        assert writable == 1
        assert size <= length

        assert self.message() == b"written"
        assert self.memory.read(LENGTH // 2, 0) == bytes([0x5A]) * (LENGTH // 2)
        self.memory.write(bytes([0xA5]) * (LENGTH // 4), LENGTH // 4, 0)
        self.move(e.IBV_WR_RDMA_WRITE, remote, rkey, 0, LENGTH // 4)
        self.move(e.IBV_WR_RDMA_READ, remote, rkey, LENGTH // 2, LENGTH // 2)
        assert self.memory.read(LENGTH // 2, LENGTH // 2) == bytes([0xC3]) * (LENGTH // 2)
        self.notify(b"written back")
        assert self.message() == b"thanks"


if __name__ == "__main__":
    peer = Peer(Path(sys.argv[1]), sys.argv[2])
    peer.exchange()
    print(json.dumps({"exchanged": True}))
