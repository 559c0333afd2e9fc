"""The two apps of a federation of hospitals: the server's, and each hospital's."""
