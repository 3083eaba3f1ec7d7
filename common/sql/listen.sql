LISTEN {channel}_ready;
LISTEN {channel}_due;
