"""Bags: what rosbag2 recorded, read without a ROS installation and imported as a stream of a replay."""
