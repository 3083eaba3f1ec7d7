LISTEN {channel}_check;
