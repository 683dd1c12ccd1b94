// SPDX-License-Identifier: Apache-2.0
// What the NCCL transport says where it cannot run.
#include "runtime/bootstrap/socket.h"
#include "tests/support/job_token.h"

#include <agpcs/bootstrap.h>
#include <agpcs/nccl.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace agpcs {
namespace {

using testing::HasSubstr;

std::unique_ptr<Bootstrap> alone() {
  auto listening = listen_at("127.0.0.1");
  EXPECT_TRUE(listening.ok()) << listening.status().message();
  BootstrapOptions options;
  options.port = port_of(listening->get());
  options.listen_fd = listening->release();
  options.token = kJobToken;
  auto bootstrap = Bootstrap::join(options);
  EXPECT_TRUE(bootstrap.ok()) << bootstrap.status().message();
  return std::move(*bootstrap);
}

TEST(Nccl, SaysThatThereIsNoDevice) {
  if (nccl_obstacle().empty()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THAT(nccl_obstacle(), HasSubstr("no CUDA device was found"));
  const auto bootstrap = alone();
  const auto transport = connect_nccl(*bootstrap);
  ASSERT_FALSE(transport.ok());
  EXPECT_EQ(transport.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(transport.status().message(),
              HasSubstr("rank 0 cannot use NCCL: no CUDA device was found"));
  EXPECT_THAT(transport.status().message(), HasSubstr("use the gloo transport"));
}

TEST(Nccl, SaysThatADeviceIsNotThere) {
  if (!nccl_obstacle().empty()) GTEST_SKIP() << nccl_obstacle();
  const auto bootstrap = alone();
  NcclOptions options;
  options.device = 4096;
  const auto transport = connect_nccl(*bootstrap, options);
  ASSERT_FALSE(transport.ok());
  EXPECT_EQ(transport.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(transport.status().message(), HasSubstr("rank 0 cannot use CUDA device 4096"));
}

}  // namespace
}  // namespace agpcs
