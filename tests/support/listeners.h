// SPDX-License-Identifier: Apache-2.0
// What a process listens at, as the kernel tells.
#pragma once

#include <arpa/inet.h>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <netinet/in.h>
#include <set>
#include <sstream>
#include <string>
#include <sys/types.h>
#include <system_error>

namespace agpcs {

/// The sockets of a process, as "socket:[17]".
inline std::set<std::string> sockets_of(pid_t pid) {
  std::set<std::string> found;
  std::error_code gone;  // a descriptor may be closed meanwhile
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(folder, gone)) {
    found.insert(std::filesystem::read_symlink(entry.path(), gone).string());
  }
  return found;
}

/// "0100007F" as "127.0.0.1": words of 4 bytes in the order of this machine.
inline std::string address_of_hex(const std::string& hex) {
  std::uint32_t words[4] = {};
  for (std::size_t word = 0; word * 8 < hex.size(); ++word) {
    words[word] = static_cast<std::uint32_t>(std::stoul(hex.substr(word * 8, 8), nullptr, 16));
  }
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(hex.size() == 8 ? AF_INET : AF_INET6, words, text, sizeof text);
  return text;
}

/// The addresses and ports at which a process listens: "127.0.0.1 29500", ":: 29500".
inline std::set<std::string> listeners_of(pid_t pid) {
  const std::set<std::string> sockets = sockets_of(pid);
  std::set<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    std::getline(lines, line);  // the heading
    while (std::getline(lines, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state, queues, timer, again, user, timeout, inode;
      fields >> number >> local >> remote >> state >> queues >> timer >> again >> user >> timeout >>
          inode;
      if (state != "0A" || sockets.count("socket:[" + inode + "]") == 0) continue;
      const std::size_t colon = local.find(':');
      found.insert(address_of_hex(local.substr(0, colon)) + " " +
                   std::to_string(std::stoul(local.substr(colon + 1), nullptr, 16)));
    }
  }
  return found;
}

}  // namespace agpcs
