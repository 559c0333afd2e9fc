from privlearn.scans.grid import Grid as Grid
from privlearn.scans.grid import prepared as prepared
from privlearn.scans.nifti import Scan as Scan
from privlearn.scans.nifti import read_mask as read_mask
from privlearn.scans.nifti import read_scan as read_scan
from privlearn.scans.nifti import write_mask as write_mask
from privlearn.scans.windows import segmented as segmented
