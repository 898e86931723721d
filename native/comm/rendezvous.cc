// The store where ranks find one another.
#include "comm/rendezvous.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "comm/brief_name_queries.h"

namespace troupe {

namespace {

// A socket that listens on 127.0.0.1; left to itself TCPStore would listen on all interfaces.
int listen_on_loopback(uint16_t& port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (fd < 0 || ::bind(fd, generic, length) != 0 || ::listen(fd, SOMAXCONN) != 0 ||
      ::getsockname(fd, generic, &length) != 0) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    fail(ErrorCode::kComm, "[comm] cannot listen on 127.0.0.1: ", std::strerror(error));
  }
  port = ntohs(address.sin_port);
  return fd;
}

class StoreRendezvous final : public Rendezvous {
 public:
  StoreRendezvous() {
    c10d::TCPStoreOptions options;
    options.isServer = true;
    options.waitWorkers = false;
    options.masterListenFd = listen_on_loopback(options.port);
    const BriefNameQueries brief;
    try {
      store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      fail(ErrorCode::kComm, "[comm] cannot serve the rendezvous: ", text.substr(0, text.find('\n')));
    }
  }
  int64_t port() const override { return store_->getPort(); }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::unique_ptr<Rendezvous> Rendezvous::open() {
  return std::make_unique<StoreRendezvous>();
}

}  // namespace troupe
