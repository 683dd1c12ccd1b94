# SPDX-License-Identifier: Apache-2.0
# agpcs-profile, where there is an executor to measure.
if(TARGET agpcs_runtime_torch)
  agpcs_library(tools_profile FOLDER tools
    SOURCES
      profile_command.cc
      profile_device.cc
      profile_fits.cc
      profile_gather.cc
      profile_options.cc
      profile_pool.cc
      profile_rank.cc
      profile_report.cc
      profile_statistics.cc
      profile_step.cc
    DEPS tools_common tools_run profile_network ir frontend cost_model planner codegen runtime runtime_torch
    PRIVATE_DEPS CLI11::CLI11)
  agpcs_tool(agpcs-profile SOURCES agpcs_profile.cc DEPS tools_profile)
endif()
