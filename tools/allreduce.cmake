# SPDX-License-Identifier: Apache-2.0
agpcs_library(tools_allreduce FOLDER tools
  SOURCES
    allreduce_command.cc
    allreduce_input.cc
    allreduce_picture.cc
    allreduce_report.cc
    allreduce_result.cc
  DEPS tools_common ir frontend cost_model codegen flows
  PRIVATE_DEPS CLI11::CLI11)
agpcs_tool(agpcs-allreduce SOURCES agpcs_allreduce.cc DEPS tools_allreduce)
