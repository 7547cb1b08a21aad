// Tables of operations that all return -FI_ENOSYS, to be filled with what is supported.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

namespace faulty_libfabric {

template <typename Function>
struct Unsupported;
template <typename Result, typename... Arguments>
struct Unsupported<Result (*)(Arguments...)> {
  static Result Call(Arguments...) { return -FI_ENOSYS; }
};

template <typename Table, typename... Functions>
Table Refuse(Table table, Functions Table::*... functions) {
  table.size = sizeof(Table);
  ((table.*functions = Unsupported<Functions>::Call), ...);
  return table;
}

inline fi_ops RefuseAll(fi_ops table) {
  using T = fi_ops;
  return Refuse(table, &T::close, &T::bind, &T::control, &T::ops_open, &T::tostr, &T::ops_set);
}
inline fi_ops_fabric RefuseAll(fi_ops_fabric table) {
  using T = fi_ops_fabric;
  return Refuse(table, &T::domain, &T::passive_ep, &T::eq_open, &T::wait_open, &T::trywait,
                &T::domain2);
}
inline fi_ops_domain RefuseAll(fi_ops_domain table) {
  using T = fi_ops_domain;
  return Refuse(table, &T::av_open, &T::cq_open, &T::endpoint, &T::scalable_ep, &T::cntr_open,
                &T::poll_open, &T::stx_ctx, &T::srx_ctx, &T::query_atomic, &T::query_collective,
                &T::endpoint2);
}
inline fi_ops_av RefuseAll(fi_ops_av table) {
  using T = fi_ops_av;
  return Refuse(table, &T::insert, &T::insertsvc, &T::insertsym, &T::remove, &T::lookup,
                &T::av_set);
}
inline fi_ops_cq RefuseAll(fi_ops_cq table) {
  using T = fi_ops_cq;
  return Refuse(table, &T::read, &T::readfrom, &T::readerr, &T::sread, &T::sreadfrom, &T::signal);
}
inline fi_ops_ep RefuseAll(fi_ops_ep table) {
  using T = fi_ops_ep;
  return Refuse(table, &T::cancel, &T::getopt, &T::setopt, &T::tx_ctx, &T::rx_ctx, &T::rx_size_left,
                &T::tx_size_left);
}
inline fi_ops_cm RefuseAll(fi_ops_cm table) {
  using T = fi_ops_cm;
  return Refuse(table, &T::setname, &T::getname, &T::getpeer, &T::connect, &T::listen, &T::accept,
                &T::reject, &T::shutdown, &T::join);
}
inline fi_ops_msg RefuseAll(fi_ops_msg table) {
  using T = fi_ops_msg;
  return Refuse(table, &T::recv, &T::recvv, &T::recvmsg, &T::send, &T::sendv, &T::sendmsg,
                &T::inject, &T::senddata, &T::injectdata);
}
inline fi_ops_rma RefuseAll(fi_ops_rma table) {
  using T = fi_ops_rma;
  return Refuse(table, &T::read, &T::readv, &T::readmsg, &T::write, &T::writev, &T::writemsg,
                &T::inject, &T::writedata, &T::injectdata);
}

// The operations of the fid of an object.
inline fi_ops FidOperations(int (*close)(fid*), int (*bind)(fid*, fid*, uint64_t) = nullptr,
                            int (*control)(fid*, int, void*) = nullptr) {
  fi_ops table = RefuseAll(fi_ops{});
  table.close = close;
  if (bind != nullptr) table.bind = bind;
  if (control != nullptr) table.control = control;
  return table;
}

}  // namespace faulty_libfabric
