# SPDX-License-Identifier: Apache-2.0
# agpcs-train-policy, where there is LibTorch to train with. It loads the plugin, as every program does.
if(TARGET agpcs_dqn_plugin)
  agpcs_library(tools_train_policy FOLDER tools
    SOURCES
      dqn_options.cc
      train_flow_policy.cc
      train_flow_policy_options.cc
      train_policy.cc
      train_policy_options.cc
      train_policy_problems.cc
    DEPS tools_common ir planner flows
    PRIVATE_DEPS CLI11::CLI11)
  agpcs_tool(agpcs-train-policy SOURCES agpcs_train_policy.cc DEPS tools_train_policy)
  add_dependencies(agpcs-train-policy agpcs_dqn_plugin)
  add_dependencies(agpcs-compile agpcs_dqn_plugin)
endif()
