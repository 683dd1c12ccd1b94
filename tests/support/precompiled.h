// SPDX-License-Identifier: Apache-2.0
// What most tests include, of others: compiled once for all of them (cmake/AgpcsLibrary.cmake). No
// file includes it.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>
